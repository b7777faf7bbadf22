//! Description of a case.

use farcall_verbs::{OpCaps, QpType, WrOpcode};

use crate::end::{End, join};
use crate::finding::Verdict;
use crate::op::{Operation, transport_name};
use crate::setup::Setup;

/// Operations that a case needs over a transport (`ibv_query_device`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Transport.
    pub qp_type: QpType,
    /// Operations.
    pub ops: OpCaps,
}

/// Feature that a provider may lack without a capability that indicates it. A case that names the feature, and is
/// refused as "unsupported", counts as unsupported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Draining send queues (SQD).
    SendQueueDrain,
    /// Limit events of shared receive queues.
    SrqLimit,
    /// Registering memory that the provider did not allocate.
    RegisterMemory,
    /// Huge pages.
    HugePages,
    /// Completion queues with a bounded number of completions.
    CqOverrun,
}

/// Body of a case: the actions of initiator and target.
pub(crate) type Body = fn(&mut End, &mut End) -> Verdict;
pub(crate) type BoxedBody = Box<dyn Fn(&mut End, &mut End) -> Verdict>;

/// A test of one statement of the specification.
pub struct Case {
    /// Stable name: `rc/write/remote-access/no-permission`.
    pub name: String,
    /// Clause of the specification, or man page.
    pub source: &'static str,
    /// Required operations.
    pub needs: Vec<Need>,
    /// Features that the provider may refuse as unsupported.
    pub optional: Vec<Feature>,
    pub(crate) body: BoxedBody,
}

impl Case {
    /// Returns whether the case uses unreliable queue pairs, whose messages may be lost.
    pub(crate) fn is_unreliable(&self) -> bool {
        self.needs.iter().any(|need| need.qp_type != QpType::Rc)
    }

    /// Adds a feature that the provider may lack.
    pub(crate) fn optional(&mut self, feature: Feature) -> &mut Self {
        self.optional.push(feature);
        self
    }

    /// Adds required operations.
    pub(crate) fn needs(&mut self, qp_type: QpType, ops: OpCaps) -> &mut Self {
        self.needs.push(Need { qp_type, ops });
        self
    }
}

/// Table of cases under construction.
#[derive(Default)]
pub(crate) struct Table(pub(crate) Vec<Case>);

impl Table {
    /// Adds a case whose ends start without objects.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        source: &'static str,
        body: impl Fn(&mut End, &mut End) -> Verdict + 'static,
    ) -> &mut Case {
        let (name, body) = (name.into(), Box::new(body));
        self.0.push(Case { name, source, needs: Vec::new(), optional: Vec::new(), body });
        self.0.last_mut().expect("just pushed")
    }

    /// Adds a case whose ends start connected, and which needs operations over the setup's transport.
    pub(crate) fn joined(
        &mut self,
        setup: Setup,
        name: impl Into<String>,
        needs: OpCaps,
        source: &'static str,
        body: impl Fn(&mut End, &mut End) -> Verdict + 'static,
    ) -> &mut Case {
        let joined = move |a: &mut End, b: &mut End| {
            join(a, b, &setup)?;
            body(a, b)
        };
        self.add(name, source, joined).needs(setup.qp_type, needs)
    }

    /// Adds a case whose ends start with a default reliable connection.
    pub(crate) fn rc(
        &mut self,
        name: impl Into<String>,
        needs: OpCaps,
        source: &'static str,
        body: impl Fn(&mut End, &mut End) -> Verdict + 'static,
    ) -> &mut Case {
        self.joined(Setup::rc(), name, needs, source, body)
    }

    /// Adds a case of an operation whose ends start connected; `what` is the rest of its name.
    pub(crate) fn op_case(
        &mut self,
        setup: Setup,
        op: WrOpcode,
        what: &str,
        source: &'static str,
        body: impl Fn(&mut End, &mut End, WrOpcode) -> Verdict + 'static,
    ) -> &mut Case {
        let name = op_case_name(setup.qp_type, op, what);
        self.joined(setup, name, op.needed_caps(), source, move |a, b| body(a, b, op))
    }

    /// Adds a case of an operation over a transport whose ends start without objects.
    pub(crate) fn op_case_apart(
        &mut self,
        qp_type: QpType,
        op: WrOpcode,
        what: &str,
        source: &'static str,
        body: impl Fn(&mut End, &mut End, QpType, WrOpcode) -> Verdict + 'static,
    ) -> &mut Case {
        let name = op_case_name(qp_type, op, what);
        self.add(name, source, move |a, b| body(a, b, qp_type, op)).needs(qp_type, op.needed_caps())
    }
}

fn op_case_name(qp_type: QpType, op: WrOpcode, what: &str) -> String {
    format!("{}/{}/{what}", transport_name(qp_type), op.name())
}

//! What a case is.

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

/// What a provider may lack without telling by capabilities: a case that names it, and is refused as "unsupported",
/// counts as unsupported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Draining send queues (SQD).
    SendQueueDrain,
    /// Limit events of shared receive queues.
    SrqLimit,
    /// Registering memory that exists.
    RegisterMemory,
    /// Huge pages.
    HugePages,
    /// Completion queues that hold a bounded number of completions.
    CqOverrun,
}

/// The body of a case: what an initiator and a target do.
pub(crate) type Body = fn(&mut End, &mut End) -> Verdict;
pub(crate) type BoxedBody = Box<dyn Fn(&mut End, &mut End) -> Verdict>;

/// One sentence of the specification, tried.
pub struct Case {
    /// A stable name: `rc/write/remote-access/no-permission`.
    pub name: String,
    /// Where it is written.
    pub source: &'static str,
    /// What it needs.
    pub needs: Vec<Need>,
    /// What the provider may refuse as unsupported.
    pub optional: Vec<Feature>,
    pub(crate) body: BoxedBody,
}

impl Case {
    /// Whether it uses queue pairs that may lose what they carry.
    pub(crate) fn is_unreliable(&self) -> bool {
        self.needs.iter().any(|need| need.qp_type != QpType::Rc)
    }

    /// Names a feature the provider may lack.
    pub(crate) fn optional(&mut self, feature: Feature) -> &mut Self {
        self.optional.push(feature);
        self
    }

    /// Adds operations it needs.
    pub(crate) fn needs(&mut self, qp_type: QpType, ops: OpCaps) -> &mut Self {
        self.needs.push(Need { qp_type, ops });
        self
    }
}

/// The table of cases while it is made.
#[derive(Default)]
pub(crate) struct Table(pub(crate) Vec<Case>);

impl Table {
    /// Adds a case whose ends have no objects.
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

    /// Adds a case whose ends are connected; it needs operations over the setup's transport.
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

    /// Adds a case whose ends have an ordinary reliable connection.
    pub(crate) fn rc(
        &mut self,
        name: impl Into<String>,
        needs: OpCaps,
        source: &'static str,
        body: impl Fn(&mut End, &mut End) -> Verdict + 'static,
    ) -> &mut Case {
        self.joined(Setup::rc(), name, needs, source, body)
    }

    /// Adds a case of an operation between ends that are connected; `what` is the rest of its name.
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

    /// Adds a case of an operation over a transport whose ends have no objects.
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

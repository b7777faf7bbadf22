//! What a case is.

use farcall_verbs::{OpCaps, QpType};

use crate::finding::Verdict;
use crate::peer::Peer;

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

/// The body of a case: an initiator and a target, both empty.
pub(crate) type Body = Box<dyn Fn(&mut Peer, &mut Peer) -> Verdict>;

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
    pub(crate) body: Body,
}

impl Case {
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
    /// Adds a case.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        source: &'static str,
        body: impl Fn(&mut Peer, &mut Peer) -> Verdict + 'static,
    ) -> &mut Case {
        self.0.push(Case {
            name: name.into(),
            source,
            needs: Vec::new(),
            optional: Vec::new(),
            body: Box::new(body),
        });
        self.0.last_mut().expect("just pushed")
    }
}

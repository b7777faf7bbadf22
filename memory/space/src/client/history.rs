//! Membership views of a client, recorded outside of its process for a successor.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::wire::MembershipView;

/// Records the membership views of a client where its successor finds them; see
/// [`with_history`](crate::VolumeConfig::with_history).
pub trait ViewHistory: Send + Sync {
    /// Returns the last view that was committed, if there is one, and those proposed since.
    fn views(&self) -> (Option<MembershipView>, Vec<MembershipView>);

    /// Records a view before it is sent to any node. `before` is the newest view that nodes have.
    ///
    /// # Errors
    /// Returns an error if the view was not recorded; it is not sent to any node then.
    fn propose(&self, before: Option<&MembershipView>, view: &MembershipView) -> io::Result<()>;

    /// Records that all members of the view have stored it.
    fn commit(&self, view: &MembershipView);
}

/// History of a volume's client; `None` if it records none.
#[derive(Clone, Default)]
pub(super) struct History(Option<Arc<dyn ViewHistory>>);

impl History {
    pub fn recorded_by(history: Arc<dyn ViewHistory>) -> Self {
        Self(Some(history))
    }

    /// Returns whether a client with this history has claimed the volume before.
    pub fn has_claimed(&self) -> bool {
        self.0.as_ref().is_some_and(|history| history.views() != (None, Vec::new()))
    }

    /// Returns whether `view` is the last view that was committed, and no nodes other than `known` can have been sent
    /// a later one.
    pub fn vouches_for(&self, view: &MembershipView, known: &BTreeSet<u64>) -> bool {
        let Some((committed, proposed)) = self.0.as_ref().map(|history| history.views()) else {
            return false;
        };
        let is_known = |view: &MembershipView| view.nodes.iter().all(|node| known.contains(node));
        committed.as_ref() == Some(view) && proposed.iter().all(is_known)
    }

    pub fn propose(&self, before: Option<&MembershipView>, view: &MembershipView) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |history| history.propose(before, view))
    }

    pub fn commit(&self, view: &MembershipView) {
        if let Some(history) = &self.0 {
            history.commit(view);
        }
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a history" } else { "none" })
    }
}

impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for History {}

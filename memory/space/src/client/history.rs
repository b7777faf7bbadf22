//! The marks of a client, kept outside of its process for a successor.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::config::VolumeConfig;
use crate::wire::Mark;

/// Keeps the marks of a client where its successor finds them; see [`VolumeConfig::with_history`].
pub trait MarkHistory: Send + Sync {
    /// Returns the last mark that was committed, if there is one, and those that were proposed since.
    fn marks(&self) -> (Option<Mark>, Vec<Mark>);

    /// Records a mark before any node is sent it. `before` is the newest mark that nodes have.
    ///
    /// # Errors
    /// If it is not recorded; then no node is sent it.
    fn propose(&self, before: Option<&Mark>, mark: &Mark) -> io::Result<()>;

    /// Records that all members of the mark have it.
    fn commit(&self, mark: &Mark);
}

/// The history of a volume's client, if it keeps one.
#[derive(Clone, Default)]
pub(super) struct History(Option<Arc<dyn MarkHistory>>);

impl History {
    /// Returns whether a client with this history has claimed the volume before.
    pub fn has_claimed(&self) -> bool {
        self.0.as_ref().is_some_and(|history| history.marks() != (None, Vec::new()))
    }

    /// Returns whether this is the last mark that was committed, and no other node than these can have been sent a later
    /// one.
    pub fn vouches_for(&self, mark: &Mark, known: &BTreeSet<u64>) -> bool {
        let Some((committed, proposed)) = self.0.as_ref().map(|history| history.marks()) else {
            return false;
        };
        let is_known = |mark: &Mark| mark.nodes.iter().all(|node| known.contains(node));
        committed.as_ref() == Some(mark) && proposed.iter().all(is_known)
    }

    pub fn propose(&self, before: Option<&Mark>, mark: &Mark) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |history| history.propose(before, mark))
    }

    pub fn commit(&self, mark: &Mark) {
        if let Some(history) = &self.0 {
            history.commit(mark);
        }
    }
}

impl VolumeConfig {
    /// Records marks there. A successor with the same history believes nodes that are half of the newest mark's, if it is
    /// the last one that was committed, and the other half can have no later one: no other client can have changed the
    /// volume then. The successor does not make the volume anew.
    #[must_use]
    pub fn with_history(mut self, history: Arc<dyn MarkHistory>) -> Self {
        self.history = History(Some(history));
        self
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

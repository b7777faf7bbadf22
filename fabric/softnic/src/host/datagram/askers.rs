//! Senders that sleep until we take datagrams or post receives: each has asked to be told, and whoever does so answers.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use farcall_shm::{Mutex, fence};

use crate::life::Client;
use crate::life::rendezvous::ReplyBody;

/// Askers that are told at once: posting a receive must not cost more, the more senders wait for it.
const TOLD_AT_ONCE: usize = 64;

/// A sender that waits.
pub(super) struct Asker {
    /// The index of its ring.
    pub(super) at: usize,
    /// Whether it waits for receives, too, not only for its datagrams to be taken.
    pub(super) wants_receives: bool,
    pub(super) client: Weak<Client>,
    pub(super) request: u32,
}

impl Asker {
    /// Never waits: who does not read its answers looks again by itself, from time to time.
    fn tell(&self) {
        if let Some(client) = self.client.upgrade() {
            let _ = client.reply(self.request, ReplyBody::Place, &[]);
        }
    }
}

/// One for each ring at most, oldest first.
#[derive(Default)]
pub(super) struct Askers {
    has_any: AtomicBool,
    list: Mutex<Vec<Asker>>,
}

impl Askers {
    /// Whoever posts or takes something after this finds it.
    pub(super) fn add(&self, asker: Asker) {
        let mut list = self.list.lock();
        list.retain(|other| other.at != asker.at);
        list.push(asker);
        self.has_any.store(true, Relaxed);
        drop(list);
        fence::heavy();
    }

    /// Tells those that are `meant`, after something was posted or taken.
    #[inline]
    pub(super) fn tell(&self, meant: impl Fn(&Asker) -> bool) {
        fence::light();
        if self.has_any.load(Relaxed) {
            self.tell_some(meant);
        }
    }

    #[cold]
    fn tell_some(&self, meant: impl Fn(&Asker) -> bool) {
        let mut list = self.list.lock();
        list.extract_if(.., |asker| meant(asker)).take(TOLD_AT_ONCE).for_each(|asker| asker.tell());
        self.has_any.store(!list.is_empty(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(at: usize) -> Asker {
        Asker { at, wants_receives: true, client: Weak::new(), request: 0 }
    }

    #[test]
    fn a_sender_that_asks_again_and_again_is_kept_once() {
        let askers = Askers::default();
        (0..1000).for_each(|n| askers.add(asker(n % 10)));
        assert_eq!(askers.list.lock().len(), 10);
    }

    #[test]
    fn only_so_many_are_told_at_once_and_the_others_next_time() {
        let askers = Askers::default();
        (0..TOLD_AT_ONCE + 1).for_each(|at| askers.add(asker(at)));
        askers.tell(|asker| asker.wants_receives);
        assert_eq!(askers.list.lock().iter().map(|asker| asker.at).collect::<Vec<_>>(), [TOLD_AT_ONCE]);
        askers.tell(|asker| asker.wants_receives);
        assert!(askers.list.lock().is_empty() && !askers.has_any.load(Relaxed));
    }
}

//! Senders that sleep until the receiver consumes datagrams or posts receives. Each has requested a notification.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use farcall_shm::{Mutex, fence};

use crate::process::Client;
use crate::process::rendezvous::ReplyBody;

/// Maximum number of notifications at a time. It keeps the cost of posting a receive independent of the number of
/// senders.
const TOLD_AT_ONCE: usize = 64;

/// A sender that waits for a notification.
pub(super) struct Asker {
    /// Index of its ring.
    pub(super) at: usize,
    /// `true` if it also waits for receives, and not only for its datagrams to be consumed.
    pub(super) wants_receives: bool,
    pub(super) client: Weak<Client>,
    pub(super) request: u32,
}

impl Asker {
    /// Notifies the sender without blocking. A sender that does not read its replies polls again after an interval.
    fn tell(&self) {
        if let Some(client) = self.client.upgrade() {
            let _ = client.reply(self.request, ReplyBody::Place, &[]);
        }
    }
}

/// Waiting senders: at most one for each ring, oldest first.
#[derive(Default)]
pub(super) struct Askers {
    has_any: AtomicBool,
    list: Mutex<Vec<Asker>>,
}

impl Askers {
    /// Registers a sender. Every later post or consumption of a receive finds it.
    pub(super) fn add(&self, asker: Asker) {
        let mut list = self.list.lock();
        list.retain(|other| other.at != asker.at);
        list.push(asker);
        self.has_any.store(true, Relaxed);
        drop(list);
        fence::heavy();
    }

    /// Notifies the senders selected by `meant`, after a receive was posted or a datagram consumed.
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
    fn notifies_waiting_senders_in_bounded_batches() {
        let askers = Askers::default();
        (0..TOLD_AT_ONCE + 1).for_each(|at| askers.add(asker(at)));
        askers.tell(|asker| asker.wants_receives);
        assert_eq!(askers.list.lock().iter().map(|asker| asker.at).collect::<Vec<_>>(), [TOLD_AT_ONCE]);
        askers.tell(|asker| asker.wants_receives);
        assert!(askers.list.lock().is_empty() && !askers.has_any.load(Relaxed));
    }
}

//! Senders that sleep until the receiver consumes datagrams or posts receives. Each has requested a notification.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use farcall_shm::{Mutex, fence};

use crate::process::Client;
use crate::process::rendezvous::ReplyBody;

/// Maximum number of notifications at a time. It keeps the cost of posting a receive independent of the number of
/// senders.
const NOTIFICATIONS_MAX: usize = 64;

/// A sender that waits for a notification.
pub(super) struct BlockedSender {
    /// Index of its ring.
    pub(super) at: usize,
    /// `true` if it also waits for receives, and not only for its datagrams to be consumed.
    pub(super) wants_receives: bool,
    pub(super) client: Weak<Client>,
    pub(super) request: u32,
}

impl BlockedSender {
    /// Notifies the sender without blocking. A sender that does not read its replies polls again after an interval.
    fn notify(&self) {
        if let Some(client) = self.client.upgrade() {
            let _ = client.reply(self.request, ReplyBody::Place, &[]);
        }
    }
}

/// Waiting senders: at most one for each ring, oldest first.
#[derive(Default)]
pub(super) struct BlockedSenders {
    has_any: AtomicBool,
    list: Mutex<Vec<BlockedSender>>,
}

impl BlockedSenders {
    /// Registers a sender. Every later post or consumption of a receive finds it.
    pub(super) fn add(&self, sender: BlockedSender) {
        let mut list = self.list.lock();
        list.retain(|other| other.at != sender.at);
        list.push(sender);
        self.has_any.store(true, Relaxed);
        drop(list);
        fence::heavy();
    }

    /// Notifies the senders selected by `selected`, after a receive was posted or a datagram consumed.
    #[inline]
    pub(super) fn notify(&self, selected: impl Fn(&BlockedSender) -> bool) {
        fence::light();
        if self.has_any.load(Relaxed) {
            self.notify_some(selected);
        }
    }

    #[cold]
    fn notify_some(&self, selected: impl Fn(&BlockedSender) -> bool) {
        let mut list = self.list.lock();
        list.extract_if(.., |sender| selected(sender))
            .take(NOTIFICATIONS_MAX)
            .for_each(|sender| sender.notify());
        self.has_any.store(!list.is_empty(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(at: usize) -> BlockedSender {
        BlockedSender { at, wants_receives: true, client: Weak::new(), request: 0 }
    }

    #[test]
    fn a_sender_that_asks_again_and_again_is_kept_once() {
        let blocked_senders = BlockedSenders::default();
        (0..1000).for_each(|n| blocked_senders.add(sender(n % 10)));
        assert_eq!(blocked_senders.list.lock().len(), 10);
    }

    #[test]
    fn notifies_waiting_senders_in_bounded_batches() {
        let blocked_senders = BlockedSenders::default();
        (0..NOTIFICATIONS_MAX + 1).for_each(|at| blocked_senders.add(sender(at)));
        blocked_senders.notify(|sender| sender.wants_receives);
        assert_eq!(
            blocked_senders.list.lock().iter().map(|sender| sender.at).collect::<Vec<_>>(),
            [NOTIFICATIONS_MAX]
        );
        blocked_senders.notify(|sender| sender.wants_receives);
        assert!(blocked_senders.list.lock().is_empty() && !blocked_senders.has_any.load(Relaxed));
    }
}

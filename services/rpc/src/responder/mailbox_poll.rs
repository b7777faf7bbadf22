//! The table of mailboxes that the server polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_link::PolledWord;
use farcall_verbs::WakeProbe;

use super::ServerConnection;
use super::doorbell_bytes::DoorbellBytes;

/// Entries are in the order of the connections, and separate from their other state. With a thousand connections each
/// access to a cache line is a miss; a mailbox without a message costs one line of the mailbox and a third of a line
/// of this table. Clients that announce requests by a byte have no entry, because their bytes are polled.
#[derive(Default)]
pub(super) struct MailboxPollTable {
    entries: Vec<PollEntry>,
    pub bytes: DoorbellBytes,
    /// `true` if mailboxes are polled independently of their bytes: a client has received no response, or the server
    /// sleeps.
    pub ignore_doorbells: bool,
    delegated: Arc<DelegatedMailboxes>,
}

struct PollEntry {
    mailbox: Mailbox,
    /// Index of the connection.
    owner: u32,
}

#[derive(Clone)]
struct Mailbox {
    watch: PolledWord,
    /// The number of the next message.
    expected: u32,
}

/// The mailboxes of all connections as of the time when the server went to sleep, for the poller that polls them in
/// the meantime.
#[derive(Default)]
pub(super) struct DelegatedMailboxes(Mutex<Vec<Mailbox>>);

impl Mailbox {
    fn of(end: &ServerConnection) -> Self {
        Self { watch: end.watch.clone(), expected: end.session.expect.0 }
    }

    /// Returns whether the next message is there. The number is in the low half of a message's first word; the status
    /// bit is checked when the message is read.
    #[inline]
    fn has_message(&self) -> bool {
        self.watch.load_acquire() as u32 == self.expected
    }

    #[inline]
    fn follow(&mut self, end: &ServerConnection) {
        let session = &end.session;
        if self.expected != session.expect.0 {
            self.watch.move_to(session.requests.offset(session.expect));
            self.expected = session.expect.0;
        }
    }
}

impl MailboxPollTable {
    /// Returns the number of entries.
    #[inline]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the connection of an entry.
    #[inline]
    pub fn owner(&self, entry: usize) -> usize {
        self.entries[entry].owner as usize
    }

    /// Returns whether the mailbox of an entry holds the next message.
    #[inline]
    pub fn has_message(&self, entry: usize) -> bool {
        self.entries[entry].mailbox.has_message()
    }

    /// Updates an entry after messages were handled.
    #[inline]
    pub fn follow(&mut self, entry: usize, end: &ServerConnection) {
        self.entries[entry].mailbox.follow(end);
    }

    /// Adds the connection with index `owner`, which must be the last one.
    pub fn push(&mut self, owner: usize, end: &ServerConnection) {
        self.delegated.mailboxes().push(Mailbox::of(end));
        if end.byte.is_none() {
            self.entries.push(PollEntry { mailbox: Mailbox::of(end), owner: owner as u32 });
        }
    }

    /// Removes the connection with index `owner`; the indexes of later connections decrease by one.
    pub fn remove(&mut self, owner: usize) {
        self.delegated.mailboxes().remove(owner);
        self.entries.retain(|entry| entry.owner as usize != owner);
        for entry in &mut self.entries {
            entry.owner -= u32::from(entry.owner as usize > owner);
        }
        self.bytes.remove(owner);
    }

    /// Returns the mailboxes for a poller.
    pub fn delegated(&self) -> Arc<DelegatedMailboxes> {
        Arc::clone(&self.delegated)
    }

    /// Updates the poller's mailboxes to the connections' next messages.
    pub fn update_poller<'a>(&self, ends: impl Iterator<Item = &'a ServerConnection>) {
        for (mailbox, end) in self.delegated.mailboxes().iter_mut().zip(ends) {
            mailbox.follow(end);
        }
    }
}

impl DelegatedMailboxes {
    fn mailboxes(&self) -> MutexGuard<'_, Vec<Mailbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeProbe for DelegatedMailboxes {
    fn has_work(&self) -> bool {
        self.mailboxes().iter().any(Mailbox::has_message)
    }
}

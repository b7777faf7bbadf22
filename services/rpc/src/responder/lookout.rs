//! The table of mailboxes that the server polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_link::PolledWord;
use farcall_verbs::WakeProbe;

use super::ServerEnd;
use super::dense_bytes::DenseBytes;

/// Entries are in the order of the connections, and separate from their other state. With a thousand connections each
/// access to a cache line is a miss; a mailbox without a message costs one line of the mailbox and a third of a line
/// of this table. Clients that announce requests by a byte have no entry, because their bytes are polled.
#[derive(Default)]
pub(super) struct Lookout {
    places: Vec<Place>,
    pub bytes: DenseBytes,
    /// `true` if mailboxes are polled independently of their bytes: a client has received no response, or the server
    /// sleeps.
    pub distrusts_bytes: bool,
    covered: Arc<CoveredMailboxes>,
}

struct Place {
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
pub(super) struct CoveredMailboxes(Mutex<Vec<Mailbox>>);

impl Mailbox {
    fn of(end: &ServerEnd) -> Self {
        Self { watch: end.watch.clone(), expected: end.session.expect.0 }
    }

    /// Returns whether the next message is there. The number is in the low half of a message's first word; the status
    /// bit is checked when the message is read.
    #[inline]
    fn has_message(&self) -> bool {
        self.watch.load_acquire() as u32 == self.expected
    }

    #[inline]
    fn follow(&mut self, end: &ServerEnd) {
        let session = &end.session;
        if self.expected != session.expect.0 {
            self.watch.move_to(session.requests.offset(session.expect));
            self.expected = session.expect.0;
        }
    }
}

impl Lookout {
    /// Returns the number of entries.
    #[inline]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the connection of an entry.
    #[inline]
    pub fn owner(&self, place: usize) -> usize {
        self.places[place].owner as usize
    }

    /// Returns whether the mailbox of an entry holds the next message.
    #[inline]
    pub fn sees(&self, place: usize) -> bool {
        self.places[place].mailbox.has_message()
    }

    /// Updates an entry after messages were handled.
    #[inline]
    pub fn follow(&mut self, place: usize, end: &ServerEnd) {
        self.places[place].mailbox.follow(end);
    }

    /// Adds the connection with index `owner`, which must be the last one.
    pub fn push(&mut self, owner: usize, end: &ServerEnd) {
        self.covered.mailboxes().push(Mailbox::of(end));
        if end.byte.is_none() {
            self.places.push(Place { mailbox: Mailbox::of(end), owner: owner as u32 });
        }
    }

    /// Removes the connection with index `owner`; the indexes of later connections decrease by one.
    pub fn remove(&mut self, owner: usize) {
        self.covered.mailboxes().remove(owner);
        self.places.retain(|place| place.owner as usize != owner);
        for place in &mut self.places {
            place.owner -= u32::from(place.owner as usize > owner);
        }
        self.bytes.remove(owner);
    }

    /// Returns the mailboxes for a poller.
    pub fn covered(&self) -> Arc<CoveredMailboxes> {
        Arc::clone(&self.covered)
    }

    /// Updates the poller's mailboxes to the connections' next messages.
    pub fn tell_poller<'a>(&self, ends: impl Iterator<Item = &'a ServerEnd>) {
        for (mailbox, end) in self.covered.mailboxes().iter_mut().zip(ends) {
            mailbox.follow(end);
        }
    }
}

impl CoveredMailboxes {
    fn mailboxes(&self) -> MutexGuard<'_, Vec<Mailbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeProbe for CoveredMailboxes {
    fn has_work(&self) -> bool {
        self.mailboxes().iter().any(Mailbox::has_message)
    }
}

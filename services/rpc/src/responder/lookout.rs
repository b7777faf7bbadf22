//! Where the server looks for the next message of each connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_link::Watch;
use farcall_verbs::Probe;

use super::ServerEnd;
use super::dense_bytes::DenseBytes;

/// In the order of the connections, and apart from all else that they hold: of a thousand in turn each cache line is a
/// miss, and one that has no message costs one line of its mailbox and a third of one here. Those whose clients tell of
/// requests by a byte have no place: their bytes are looked at.
#[derive(Default)]
pub(super) struct Lookout {
    places: Vec<Place>,
    pub bytes: DenseBytes,
    /// Whether mailboxes are to be looked at whatever their bytes say: a client has waited in vain, or the server sleeps.
    pub distrusts_bytes: bool,
    covered: Arc<CoveredMailboxes>,
}

struct Place {
    mailbox: Mailbox,
    /// Which connection.
    owner: u32,
}

#[derive(Clone)]
struct Mailbox {
    watch: Watch,
    /// The number of the next message.
    expected: u32,
}

/// The mailboxes of all connections, as they were when the server went to sleep, for the poller that covers it.
#[derive(Default)]
pub(super) struct CoveredMailboxes(Mutex<Vec<Mailbox>>);

impl Mailbox {
    fn of(end: &ServerEnd) -> Self {
        Self { watch: end.watch.clone(), expected: end.session.expect.0 }
    }

    /// The number is in the low half of a message's first word; the status bit is looked at when it is taken.
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
    /// How many mailboxes are looked at.
    #[inline]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Whose mailbox it is.
    #[inline]
    pub fn owner(&self, place: usize) -> usize {
        self.places[place].owner as usize
    }

    /// Whether the next message of a connection is in its mailbox.
    #[inline]
    pub fn sees(&self, place: usize) -> bool {
        self.places[place].mailbox.has_message()
    }

    /// The connection has taken messages.
    #[inline]
    pub fn follow(&mut self, place: usize, end: &ServerEnd) {
        self.places[place].mailbox.follow(end);
    }

    /// Looks for messages of the connection at place `owner`, the last one, from now on.
    pub fn push(&mut self, owner: usize, end: &ServerEnd) {
        self.covered.mailboxes().push(Mailbox::of(end));
        if end.byte.is_none() {
            self.places.push(Place { mailbox: Mailbox::of(end), owner: owner as u32 });
        }
    }

    /// The connection at place `owner` is gone; those behind it move up.
    pub fn remove(&mut self, owner: usize) {
        self.covered.mailboxes().remove(owner);
        self.places.retain(|place| place.owner as usize != owner);
        for place in &mut self.places {
            place.owner -= u32::from(place.owner as usize > owner);
        }
        self.bytes.remove(owner);
    }

    /// What a poller looks at.
    pub fn covered(&self) -> Arc<CoveredMailboxes> {
        Arc::clone(&self.covered)
    }

    /// Tells the poller where the connections' next messages are expected.
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

impl Probe for CoveredMailboxes {
    fn has_news(&self) -> bool {
        self.mailboxes().iter().any(Mailbox::has_message)
    }
}

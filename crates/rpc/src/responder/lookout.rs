//! Where the server looks for the next message of each connection.

use farcall_link::Watch;

use super::ServerEnd;
use super::dense_bytes::DenseBytes;

/// In the order of the connections, and apart from all else that they hold: of a thousand in turn each cache line is a
/// miss, and one that has no message costs one line of its mailbox and a third of one here. Those whose clients tell of
/// requests by a byte have no place: their bytes are looked at.
#[derive(Default)]
pub(super) struct Lookout {
    places: Vec<Place>,
    pub bytes: DenseBytes,
    /// Whether mailboxes are to be looked at whatever their bytes say: a client has waited in vain.
    pub distrusts_bytes: bool,
}

struct Place {
    watch: Watch,
    /// The number of the next message.
    expected: u32,
    /// Which connection.
    owner: u32,
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

    /// Whether the next message of a connection is in its mailbox. The number is in the low half of its first word; the
    /// status bit is looked at when the message is taken.
    #[inline]
    pub fn sees(&self, place: usize) -> bool {
        let Place { watch, expected, .. } = &self.places[place];
        watch.load_acquire() as u32 == *expected
    }

    /// The connection has taken messages.
    #[inline]
    pub fn follow(&mut self, place: usize, end: &ServerEnd) {
        let (place, session) = (&mut self.places[place], &end.session);
        if place.expected != session.expect.0 {
            place.watch.move_to(session.requests.offset(session.expect));
            place.expected = session.expect.0;
        }
    }

    /// Looks at a mailbox from now on, of the connection at place `owner`, the last one.
    pub fn push(&mut self, owner: usize, end: &ServerEnd) {
        let (watch, expected) = (end.watch.clone(), end.session.expect.0);
        self.places.push(Place { watch, expected, owner: owner as u32 });
    }

    /// The connection at place `owner` is gone; those behind it move up.
    pub fn remove(&mut self, owner: usize) {
        self.places.retain(|place| place.owner as usize != owner);
        for place in &mut self.places {
            place.owner -= u32::from(place.owner as usize > owner);
        }
        self.bytes.remove(owner);
    }
}

//! Where the server looks for the next message of each connection.

use farcall_link::Watch;

use super::ServerEnd;

/// In the order of the connections, and apart from all else that they hold: of a thousand in turn each cache line is a
/// miss, and one that has no message costs one line of its mailbox and a third of one here.
#[derive(Default)]
pub(super) struct Lookout(Vec<Place>);

struct Place {
    watch: Watch,
    /// The number of the next message.
    expected: u32,
}

impl Lookout {
    /// Whether the next message of a connection is in its mailbox. The number is in the low half of its first word; the
    /// status bit is looked at when the message is taken.
    #[inline]
    pub fn sees(&self, at: usize) -> bool {
        let Place { watch, expected } = &self.0[at];
        watch.load_acquire() as u32 == *expected
    }

    /// The connection has taken messages.
    #[inline]
    pub fn follow(&mut self, at: usize, end: &ServerEnd) {
        let (place, session) = (&mut self.0[at], &end.session);
        if place.expected != session.expect.0 {
            place.watch.move_to(session.requests.offset(session.expect));
            place.expected = session.expect.0;
        }
    }

    pub fn push(&mut self, end: &ServerEnd) {
        self.0.push(Place { watch: end.watch.clone(), expected: end.session.expect.0 });
    }

    pub fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

//! Where the server looks for the next message of each connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_link::Watch;
use farcall_verbs::Probe;

use super::ServerEnd;

/// In the order of the connections, and apart from all else that they hold: of a thousand in turn each cache line is a
/// miss, and one that has no message costs one line of its mailbox and a third of one here.
#[derive(Default)]
pub(super) struct Lookout {
    places: Vec<Place>,
    covered: Arc<CoveredPlaces>,
}

/// The same, as they were when the server went to sleep, for the poller that covers it.
#[derive(Default)]
pub(super) struct CoveredPlaces(Mutex<Vec<Place>>);

#[derive(Clone)]
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
        self.places[at].has_message()
    }

    /// The connection has taken messages.
    #[inline]
    pub fn follow(&mut self, at: usize, end: &ServerEnd) {
        let (place, session) = (&mut self.places[at], &end.session);
        if place.expected != session.expect.0 {
            place.watch.move_to(session.requests.offset(session.expect));
            place.expected = session.expect.0;
        }
    }

    pub fn push(&mut self, end: &ServerEnd) {
        let place = Place { watch: end.watch.clone(), expected: end.session.expect.0 };
        self.covered.places().push(place.clone());
        self.places.push(place);
    }

    pub fn remove(&mut self, at: usize) {
        self.covered.places().remove(at);
        self.places.remove(at);
    }

    /// What a poller looks at.
    pub fn covered(&self) -> Arc<CoveredPlaces> {
        Arc::clone(&self.covered)
    }

    /// Tells the poller where the next messages are expected.
    pub fn tell_poller(&self) {
        for (known, place) in self.covered.places().iter_mut().zip(&self.places) {
            if known.expected != place.expected {
                known.clone_from(place);
            }
        }
    }
}

impl Place {
    #[inline]
    fn has_message(&self) -> bool {
        self.watch.load_acquire() as u32 == self.expected
    }
}

impl CoveredPlaces {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe for CoveredPlaces {
    fn has_news(&self) -> bool {
        self.places().iter().any(Place::has_message)
    }
}

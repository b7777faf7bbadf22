//! The probe by which a poller detects activity of a stream: it compares the peer's control words with the values that
//! the application knew when it went to sleep. The result is a hint: the application thread polls the stream itself
//! after the wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farcall_link::Region;
use farcall_verbs::WakeProbe;

use crate::words::{CONSUMED, END, WAKE_REQUEST, WAKES_TAKEN, WRITTEN};

/// The control words that can require an action. `WAKE_ACK` is not used by an end whose polling is delegated, and
/// `TURN` is followed by bytes.
const WATCHED: [usize; 5] = [WRITTEN, CONSUMED, WAKES_TAKEN, WAKE_REQUEST, END];

pub(crate) struct StreamProbe {
    words: Arc<Region>,
    known: [AtomicU64; WATCHED.len()],
}

impl StreamProbe {
    pub fn new(words: Arc<Region>) -> Self {
        Self { words, known: Default::default() }
    }

    /// Records the current values as known: the application thread polls them before it sleeps.
    pub fn record(&self) {
        for (known, at) in self.known.iter().zip(WATCHED) {
            known.store(self.words.load_acquire(at), Ordering::Relaxed);
        }
    }
}

impl WakeProbe for StreamProbe {
    #[inline]
    fn has_work(&self) -> bool {
        let mut words = self.known.iter().zip(WATCHED);
        words.any(|(known, at)| self.words.load_acquire(at) != known.load(Ordering::Relaxed))
    }
}

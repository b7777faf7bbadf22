//! What tells a poller that a stream has news: the words that the peer writes, beside what the owner knew of them when it
//! went to sleep. All of it is a hint: the owner looks for itself when it was woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farcall_link::Region;
use farcall_verbs::Probe;

use crate::words::{CONSUMED, END, WAKES_TAKEN, WISH, WRITTEN};

/// The words that something may have to be done for. (A promise is of no use to who is covered, and a turn to another
/// ring comes with bytes.)
const WATCHED: [usize; 5] = [WRITTEN, CONSUMED, WAKES_TAKEN, WISH, END];

pub(crate) struct StreamProbe {
    words: Arc<Region>,
    known: [AtomicU64; WATCHED.len()],
}

impl StreamProbe {
    pub fn new(words: Arc<Region>) -> Self {
        Self { words, known: Default::default() }
    }

    /// What is there now is known: its owner looks at it before it sleeps.
    pub fn know(&self) {
        for (known, at) in self.known.iter().zip(WATCHED) {
            known.store(self.words.load_acquire(at), Ordering::Relaxed);
        }
    }
}

impl Probe for StreamProbe {
    #[inline]
    fn has_news(&self) -> bool {
        let mut words = self.known.iter().zip(WATCHED);
        words.any(|(known, at)| self.words.load_acquire(at) != known.load(Ordering::Relaxed))
    }
}

//! Detection of sequential faults, which determines the amount of read-ahead.

/// Number of sequences that are tracked at once.
const STREAMS: usize = 8;
/// Initial number of pages that are read ahead.
const FIRST_PAGES: u32 = 4;

#[derive(Clone, Copy)]
struct Stream {
    /// Page of the next expected fault.
    next: u32,
    /// Number of pages read ahead at the last fault.
    ahead: u32,
    used: u64,
}

/// The tracked sequences.
pub(crate) struct SequentialDetector {
    streams: [Stream; STREAMS],
    max_pages: u32,
    faults: u64,
}

impl SequentialDetector {
    /// Creates a detector that reads at most `max_pages` pages ahead.
    pub const fn new(max_pages: u32) -> Self {
        Self { streams: [Stream { next: u32::MAX, ahead: 0, used: 0 }; STREAMS], max_pages, faults: 0 }
    }

    /// Records a fault. Returns the number of pages after it to read ahead: twice as many as at the last fault of the
    /// same sequence, 0 for the first fault of a new one.
    pub fn record_fault(&mut self, page: u32) -> u32 {
        self.faults += 1;
        let (used, max_pages) = (self.faults, self.max_pages);
        let followed = self.streams.iter_mut().find(|stream| stream.next == page);
        let stream = match followed {
            Some(stream) => {
                stream.ahead = (stream.ahead * 2).clamp(FIRST_PAGES.min(max_pages), max_pages);
                stream
            }
            None => {
                let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) else { return 0 };
                oldest.ahead = 0;
                oldest
            }
        };
        (stream.used, stream.next) = (used, page.saturating_add(1 + stream.ahead));
        stream.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ahead_of_sequences_only() {
        let mut detector = SequentialDetector::new(16);
        let (mut here, mut there, mut ahead) = (100, 9_000, Vec::new());
        for alone in 0..5 {
            assert_eq!(detector.record_fault(50_000 + 70 * alone), 0);
            let (of_here, of_there) = (detector.record_fault(here), detector.record_fault(there));
            assert_eq!(of_here, of_there);
            (here, there) = (here + 1 + of_here, there + 1 + of_there);
            ahead.push(of_here);
        }
        assert_eq!(ahead, [0, 4, 8, 16, 16]);
        let mut none = SequentialDetector::new(0);
        assert_eq!([none.record_fault(1), none.record_fault(2), none.record_fault(3)], [0; 3]);
    }
}

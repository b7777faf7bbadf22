//! Finds faults that follow one another, and says how far to read ahead.

/// Sequences that are followed at once.
const STREAMS: usize = 8;
/// The first pages that are read ahead.
const FIRST_PAGES: u32 = 4;

#[derive(Clone, Copy)]
struct Stream {
    /// Where its next fault is.
    next: u32,
    /// Pages that were read ahead last.
    ahead: u32,
    used: u64,
}

/// The sequences.
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    most: u32,
    faults: u64,
}

impl Streams {
    /// Reads at most so many pages ahead.
    pub const fn new(most: u32) -> Self {
        Self { streams: [Stream { next: u32::MAX, ahead: 0, used: 0 }; STREAMS], most, faults: 0 }
    }

    /// There was a fault at a page. Returns how many pages after it are worth to be read: twice as many as at the last
    /// fault of the same sequence.
    pub fn fault(&mut self, page: u32) -> u32 {
        self.faults += 1;
        let (used, most) = (self.faults, self.most);
        let followed = self.streams.iter_mut().find(|stream| stream.next == page);
        let stream = match followed {
            Some(stream) => {
                stream.ahead = (stream.ahead * 2).clamp(FIRST_PAGES.min(most), most);
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
    fn sequences_are_read_ahead_of_and_single_faults_are_not() {
        let mut streams = Streams::new(16);
        let (mut here, mut there, mut ahead) = (100, 9_000, Vec::new());
        for alone in 0..5 {
            assert_eq!(streams.fault(50_000 + 70 * alone), 0);
            let (of_here, of_there) = (streams.fault(here), streams.fault(there));
            assert_eq!(of_here, of_there);
            (here, there) = (here + 1 + of_here, there + 1 + of_there);
            ahead.push(of_here);
        }
        assert_eq!(ahead, [0, 4, 8, 16, 16]);
        let mut none = Streams::new(0);
        assert_eq!([none.fault(1), none.fault(2), none.fault(3)], [0; 3]);
    }
}

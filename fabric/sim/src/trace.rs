//! The trace: all events, as numbers, folded into one hash. Two runs of a seed have the same hash; the last records are
//! stored for the analysis of failures.

use std::collections::VecDeque;
use std::fmt;

/// Kind of a trace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it; the meaning of the numbers stands where they are noted")]
pub enum RecordKind {
    Send,
    Drop,
    Duplicate,
    Reorder,
    Arrive,
    Ignore,
    Place,
    Fetch,
    Atomic,
    Complete,
    Post,
    PostReceive,
    State,
    Timeout,
    GoBack,
    NotReady,
    Event,
    Step,
    Sleep,
    Wake,
    PipeOpen,
    PipeBytes,
    PipeEnd,
    Kill,
    Fault,
    Create,
    Destroy,
    Congestion,
}

/// One event: time, kind and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Virtual time in nanoseconds.
    pub at_ns: u64,
    /// Kind.
    pub kind: RecordKind,
    /// Affected objects and details.
    pub numbers: [u64; 4],
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.numbers;
        write!(f, "{:>12} {:<12} {a:#x} {b:#x} {c:#x} {d:#x}", self.at_ns, format!("{:?}", self.kind))
    }
}

/// The hash of all records so far, and the last records.
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<Record>,
    keep: usize,
}

impl Trace {
    pub(crate) fn new(keep: usize) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, count: 0, last: VecDeque::with_capacity(keep), keep }
    }

    pub(crate) fn note(&mut self, at_ns: u64, kind: RecordKind, numbers: [u64; 4]) {
        self.count += 1;
        self.fold(at_ns);
        self.fold(kind as u64);
        numbers.into_iter().for_each(|number| self.fold(number));
        if self.last.len() == self.keep {
            self.last.pop_front();
        }
        if self.keep > 0 {
            self.last.push_back(Record { at_ns, kind, numbers });
        }
    }

    fn fold(&mut self, number: u64) {
        self.hash = mix(self.hash ^ number);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &Record> {
        self.last.iter()
    }
}

/// A bijection of 64-bit words in which every input bit reaches every output bit (the finaliser of MurmurHash3).
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// Returns the hash of bytes, for records that represent payload.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word)).wrapping_add(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_order_and_on_every_number() {
        let hash = |records: &[(u64, [u64; 4])]| {
            let mut trace = Trace::new(2);
            records.iter().for_each(|(at, numbers)| trace.note(*at, RecordKind::Send, *numbers));
            assert!(trace.last().count() <= 2);
            trace.hash()
        };
        let (a, b) = ((1, [1, 2, 3, 4]), (2, [1, 2, 3, 5]));
        assert_eq!(hash(&[a, b, a]), hash(&[a, b, a]));
        assert_ne!(hash(&[a, b]), hash(&[b, a]));
        assert_ne!(hash(&[a]), hash(&[b]));
        assert_ne!(hash_bytes(b"abc"), hash_bytes(b"abc\0"));
    }
}

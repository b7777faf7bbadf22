//! Counters of commands for each prefix of keys, active on request.
//!
//! The prefix of a key is the part before its first colon; a key without a colon has none. Memory is bounded: once
//! there are [`PREFIXES_MAX`] prefixes, all further ones are counted together under [`OTHERS`].

use std::collections::BTreeMap;

/// Maximum number of prefixes that are counted individually.
pub(crate) const PREFIXES_MAX: usize = 1024;

/// Name under which all other prefixes are counted.
pub(crate) const OTHERS: &[u8] = b"*";

/// The counters of a partition, or the sum over several.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    counting: bool,
    counts: BTreeMap<Box<[u8]>, PrefixCounts>,
}

/// Counters of one prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PrefixCounts {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) deletes: u64,
}

impl Prefixes {
    /// Starts or stops counting; the counters keep their values.
    pub(crate) fn count(&mut self, counting: bool) {
        self.counting = counting;
    }

    pub(crate) fn clear(&mut self) {
        self.counts.clear();
    }

    /// Counts a command on `key`, if counting is active.
    #[inline]
    pub(crate) fn note(&mut self, key: &[u8], note: impl FnOnce(&mut PrefixCounts)) {
        if self.counting {
            self.note_wanted(key, note);
        }
    }

    #[cold]
    fn note_wanted(&mut self, key: &[u8], note: impl FnOnce(&mut PrefixCounts)) {
        if let Some(end) = memchr::memchr(b':', key) {
            note(self.entry(&key[..end]));
        }
    }

    fn entry(&mut self, prefix: &[u8]) -> &mut PrefixCounts {
        let is_known = self.counts.contains_key(prefix);
        let name = if is_known || self.counts.len() < PREFIXES_MAX { prefix } else { OTHERS };
        self.counts.entry(name.into()).or_default()
    }

    /// Returns the counters in the order of the prefixes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &PrefixCounts)> {
        self.counts.iter().map(|(prefix, counts)| (&prefix[..], counts))
    }
}

#[cfg(feature = "server")]
impl Prefixes {
    pub(crate) fn is_counting(&self) -> bool {
        self.counting
    }

    /// Adds counters written by [`Prefixes::encode`].
    pub(crate) fn add_encoded(&mut self, mut bytes: &[u8]) {
        while let Some((prefix, counts, rest)) = decode_one(bytes) {
            let sum = self.entry(prefix);
            for (sum, count) in
                [&mut sum.gets, &mut sum.hits, &mut sum.sets, &mut sum.deletes].into_iter().zip(counts)
            {
                *sum += count;
            }
            bytes = rest;
        }
    }

    /// Writes the counters for another thread: for each prefix its length, its bytes and the four numbers.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in self.iter() {
            // A prefix is part of a key, so its length fits into a byte.
            out.push(prefix.len() as u8);
            out.extend_from_slice(prefix);
            for number in [counts.gets, counts.hits, counts.sets, counts.deletes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}

#[cfg(feature = "server")]
fn decode_one(bytes: &[u8]) -> Option<(&[u8], [u64; 4], &[u8])> {
    const NUMBER_BYTES: usize = size_of::<u64>();
    let (&length, rest) = bytes.split_first()?;
    let (prefix, rest) = rest.split_at_checked(usize::from(length))?;
    let (numbers, rest) = rest.split_at_checked(4 * NUMBER_BYTES)?;
    let (numbers, _) = numbers.as_chunks::<NUMBER_BYTES>();
    Some((prefix, std::array::from_fn(|at| u64::from_le_bytes(numbers[at])), rest))
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    #[test]
    fn counts_of_several_partitions_add_up() {
        let (mut one, mut other, mut sum) = (Prefixes::default(), Prefixes::default(), Prefixes::default());
        for prefixes in [&mut one, &mut other] {
            prefixes.note(b"not:yet", |counts| counts.gets += 1);
            prefixes.count(true);
            prefixes.note(b"both:1", |counts| counts.sets += 1);
        }
        other.note(b":", |counts| (counts.gets, counts.hits) = (2, 1));
        other.note(b"none", |counts| counts.gets += 1);
        one.note(b"a:b:c", |counts| counts.deletes += 1);
        for prefixes in [&one, &other] {
            let mut bytes = Vec::new();
            prefixes.encode(&mut bytes);
            sum.add_encoded(&bytes);
        }
        let empty = PrefixCounts::default();
        assert_eq!(
            sum.iter().map(|(prefix, counts)| (prefix, *counts)).collect::<Vec<_>>(),
            [
                (&b""[..], PrefixCounts { gets: 2, hits: 1, ..empty }),
                (b"a", PrefixCounts { deletes: 1, ..empty }),
                (b"both", PrefixCounts { sets: 2, ..empty }),
            ]
        );
    }
}

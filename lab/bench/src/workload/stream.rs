//! Sequence of operations of one connection.

use super::chooser::{Chooser, Distribution};
use super::mix::{OpKind, Workload};
use rand_pcg::Pcg64;

/// One operation of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Number of the record.
    pub record: u64,
}

/// Configuration of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamConfig {
    /// Mix of operations.
    pub workload: Workload,
    /// Request distribution; normally [`Workload::distribution`].
    pub distribution: Distribution,
    /// Records loaded before the run.
    pub records: u64,
    /// Seed of the complete run.
    pub seed: u64,
    /// Index of the stream in the run; streams with different indices are independent.
    pub stream: u64,
    /// Number of inserting streams: stream `i` of `n` adds records `records + i`, `records + i + n`, …
    pub streams: u64,
}

/// An endless, seeded sequence of operations.
#[derive(Debug, Clone)]
pub struct OpStream {
    rng: Pcg64,
    chooser: Chooser,
    config: StreamConfig,
    inserted: u64,
}

impl OpStream {
    /// Creates the sequence that `config` describes.
    ///
    /// # Panics
    /// Panics if `config.records` or `config.streams` is 0.
    pub fn new(config: StreamConfig) -> Self {
        assert!(config.streams > 0, "a run has at least one stream");
        let rng = Pcg64::new(config.seed.into(), config.stream.into());
        Self { rng, chooser: Chooser::new(config.distribution, config.records), config, inserted: 0 }
    }

    /// Draws the next operation. An insert counts as executed when it is drawn.
    pub fn next_op(&mut self) -> Op {
        let kind = self.config.workload.sample(&mut self.rng);
        if kind == OpKind::Insert {
            return Op { kind, record: self.insert() };
        }
        let drawn = self.chooser.sample(&mut self.rng);
        Op { kind, record: self.own_record(drawn) }
    }

    /// Returns the next `count` operations in one allocation, so that a run does not spend time on drawing.
    pub fn script(&mut self, count: usize) -> Vec<Op> {
        (0..count).map(|_| self.next_op()).collect()
    }

    fn insert(&mut self) -> u64 {
        let record = self.config.records + self.config.stream + self.inserted * self.config.streams;
        self.inserted += 1;
        self.chooser.grow(self.config.records + self.inserted);
        record
    }

    /// Returns the n-th record known to this stream: the loaded ones, then its own inserts. Inserts of other streams
    /// are not used, because they may not have been written yet.
    fn own_record(&self, nth: u64) -> u64 {
        match nth.checked_sub(self.config.records) {
            None => nth,
            Some(own) => self.config.records + self.config.stream + own * self.config.streams,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn config(workload: Workload, stream: u64) -> StreamConfig {
        StreamConfig {
            workload,
            distribution: workload.distribution(),
            records: 1000,
            seed: 42,
            stream,
            streams: 4,
        }
    }

    #[test]
    fn equal_seeds_give_equal_sequences_and_streams_differ() {
        for workload in Workload::ALL {
            let first = OpStream::new(config(workload, 0)).script(500);
            assert_eq!(first, OpStream::new(config(workload, 0)).script(500));
            assert_ne!(first, OpStream::new(config(workload, 1)).script(500));
        }
    }

    #[test]
    fn inserts_fresh_records_and_reads_only_existing_ones() {
        let mut inserted: HashSet<u64> = HashSet::new();
        for stream in 0..4 {
            let mut own: HashSet<u64> = HashSet::new();
            for op in OpStream::new(config(Workload::D, stream)).script(4000) {
                match op.kind {
                    OpKind::Insert => {
                        assert!(op.record >= 1000 && own.insert(op.record), "{op:?} inserted twice");
                    }
                    _ => assert!(op.record < 1000 || own.contains(&op.record), "{op:?} before its insert"),
                }
            }
            assert!(!own.is_empty());
            for record in own {
                assert!(inserted.insert(record), "two streams inserted {record}");
            }
        }
    }

    #[test]
    fn workload_d_reads_young_records() {
        let ops = OpStream::new(config(Workload::D, 0)).script(20_000);
        let young = ops.iter().filter(|op| op.kind == OpKind::Read && op.record >= 900).count();
        assert!(young * 2 > ops.len(), "{young} of {} operations read the youngest tenth", ops.len());
    }
}

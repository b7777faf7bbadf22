//! Versions of each record that have been written, acknowledged or are outstanding: the values that a reader may find.

use std::ops::RangeInclusive;

/// Writes of one record.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Newest version passed to the service.
    issued: u32,
    /// Newest version the service acknowledged.
    acknowledged: u32,
    /// Number of writes of version `issued` that have not completed.
    outstanding: u32,
}

/// Versions by record. Version 0 is the one loaded before a run.
///
/// Overlapping writes of one record have the same version, because the order in which the service executes them is
/// unknown. A reader must therefore find a version between the last acknowledged one when its request began and the
/// last issued one when it completed.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    has_writes: bool,
    /// `true` if other processes write as well, whose versions are unknown.
    is_shared: bool,
}

impl Ledger {
    /// Creates a ledger of `records` records at version 0.
    pub fn new(records: u64) -> Self {
        Self { entries: vec![Entry::default(); records as usize], has_writes: false, is_shared: false }
    }

    /// Creates a ledger of records that other processes write as well: a reader may find any version.
    pub fn shared(records: u64) -> Self {
        Self { is_shared: true, ..Self::new(records) }
    }

    /// Records the start of a write of `record` and returns its version. Records inserted beyond the end are added.
    pub fn begin_write(&mut self, record: u64) -> u64 {
        self.has_writes = true;
        let index = record as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, Entry::default());
        }
        let entry = &mut self.entries[index];
        if entry.outstanding == 0 {
            entry.issued += 1;
        }
        entry.outstanding += 1;
        u64::from(entry.issued)
    }

    /// Records the end of a write of `record`. A write that was not acknowledged may or may not have been executed.
    pub fn end_write(&mut self, record: u64, version: u64, is_acknowledged: bool) {
        let Some(entry) = self.entries.get_mut(record as usize) else { return };
        entry.outstanding = entry.outstanding.saturating_sub(1);
        if is_acknowledged {
            entry.acknowledged = entry.acknowledged.max(version as u32);
        }
    }

    /// Returns the oldest version that a read of `record` starting now may find.
    #[inline]
    pub fn oldest(&self, record: u64) -> u64 {
        if !self.has_writes || self.is_shared {
            return 0;
        }
        self.entries.get(record as usize).map_or(0, |entry| u64::from(entry.acknowledged))
    }

    /// Returns the versions that a read of `record` ending now may find, if [`Self::oldest`] returned `oldest` when it
    /// began.
    #[inline]
    pub fn expected(&self, record: u64, oldest: u64) -> RangeInclusive<u64> {
        if self.is_shared {
            return 0..=u64::MAX;
        }
        if !self.has_writes {
            return 0..=0;
        }
        oldest..=self.entries.get(record as usize).map_or(0, |entry| u64::from(entry.issued))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_reads_from_last_acknowledged_to_last_issued_version() {
        let mut ledger = Ledger::new(4);
        assert_eq!(ledger.expected(2, ledger.oldest(2)), 0..=0);
        let first = ledger.begin_write(2);
        let oldest = ledger.oldest(2);
        assert_eq!(ledger.expected(2, oldest), 0..=1);
        ledger.end_write(2, first, true);
        assert_eq!(ledger.expected(2, ledger.oldest(2)), 1..=1);
        // A read that began before the acknowledgement may still find version 0.
        assert_eq!(ledger.expected(2, oldest), 0..=1);
        assert_eq!(ledger.expected(3, ledger.oldest(3)), 0..=0);
    }

    #[test]
    fn beside_other_writers_any_version_may_be_found() {
        let mut ledger = Ledger::shared(1);
        assert!(ledger.expected(0, ledger.oldest(0)).contains(&7));
        let version = ledger.begin_write(0);
        ledger.end_write(0, version, true);
        assert!(ledger.expected(0, ledger.oldest(0)).contains(&0), "another's version 0 may have come later");
    }

    #[test]
    fn overlapping_writes_carry_one_version() {
        let mut ledger = Ledger::new(1);
        assert_eq!((ledger.begin_write(0), ledger.begin_write(0)), (1, 1));
        ledger.end_write(0, 1, true);
        assert_eq!(ledger.begin_write(0), 1, "one write of version 1 is still under way");
        ledger.end_write(0, 1, true);
        ledger.end_write(0, 1, true);
        assert_eq!(ledger.begin_write(0), 2);
    }

    #[test]
    fn a_write_of_unknown_outcome_may_show_or_not() {
        let mut ledger = Ledger::new(1);
        let version = ledger.begin_write(0);
        ledger.end_write(0, version, false);
        assert_eq!(ledger.expected(0, ledger.oldest(0)), 0..=1);
    }
}

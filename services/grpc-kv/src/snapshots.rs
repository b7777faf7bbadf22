//! Snapshots that clients reference by number, limited in count and lifetime.

use crate::store::StoreError;
use farcall_link::os_random;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The snapshots of a store.
pub(crate) struct Snapshots {
    table: Mutex<Table>,
    count_max: usize,
    age_max: Duration,
}

struct Table {
    held: HashMap<u64, HeldSnapshot>,
    /// Number of the snapshot opened last.
    last: u64,
    /// `true` while a task closes expired snapshots.
    is_watched: bool,
}

struct HeldSnapshot {
    snapshot: fjall::Snapshot,
    until: Instant,
}

impl Snapshots {
    /// Creates an empty table. Numbers begin at a random value, so that a number of an earlier server process
    /// identifies no snapshot of this one.
    ///
    /// # Errors
    /// Returns the error of the kernel's random number generator.
    pub fn new(count_max: usize, age_max: Duration) -> std::io::Result<Self> {
        let last = u64::from_le_bytes(os_random()?);
        let table = Table { held: HashMap::new(), last, is_watched: false };
        Ok(Self { table: Mutex::new(table), count_max, age_max })
    }

    /// Stores a snapshot and returns its number, which is not 0.
    pub fn open(&self, snapshot: fjall::Snapshot) -> Result<u64, StoreError> {
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.held.len() >= self.count_max {
            table.held.retain(|_, held| held.until > now);
        }
        if table.held.len() >= self.count_max {
            return Err(StoreError::TooManySnapshots { count_max: self.count_max });
        }
        table.last = table.last.wrapping_add(1).max(1);
        let number = table.last;
        table.held.insert(number, HeldSnapshot { snapshot, until: now + self.age_max });
        Ok(number)
    }

    /// Returns the snapshot with number `number`.
    pub fn get(&self, number: u64) -> Result<fjall::Snapshot, StoreError> {
        let mut table = self.table.lock();
        match table.held.get(&number) {
            Some(held) if held.until > Instant::now() => Ok(held.snapshot.clone()),
            Some(_) => {
                table.held.remove(&number);
                Err(StoreError::NoSnapshot(number))
            }
            None => Err(StoreError::NoSnapshot(number)),
        }
    }

    /// Closes a snapshot, unless it has already expired.
    pub fn close(&self, number: u64) {
        self.table.lock().held.remove(&number);
    }

    pub fn count(&self) -> usize {
        self.table.lock().held.len()
    }

    /// Closes expired snapshots. Returns the next expiry time.
    fn close_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut table = self.table.lock();
        table.held.retain(|_, held| held.until > now);
        let next = table.held.values().map(|held| held.until).min();
        table.is_watched = next.is_some();
        next
    }

    /// Starts a task that closes expired snapshots even if no request uses them. The task ends when there are no
    /// snapshots.
    pub fn watch(self: &Arc<Self>) {
        if std::mem::replace(&mut self.table.lock().is_watched, true) {
            return;
        }
        let snapshots = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(next) = snapshots.upgrade().and_then(|snapshots| snapshots.close_expired()) {
                tokio::time::sleep_until(next.into()).await;
            }
        });
    }
}

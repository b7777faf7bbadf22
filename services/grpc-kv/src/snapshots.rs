//! Snapshots that clients hold by number: so many, for so long.

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
    held: HashMap<u64, Held>,
    /// The number of the last one.
    last: u64,
    /// A task looks for old ones.
    is_watched: bool,
}

struct Held {
    snapshot: fjall::Snapshot,
    until: Instant,
}

impl Snapshots {
    /// None. Numbers begin anywhere: one of a server that ran before names no snapshot of this one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(count_max: usize, age_max: Duration) -> std::io::Result<Self> {
        let last = u64::from_le_bytes(os_random()?);
        let table = Table { held: HashMap::new(), last, is_watched: false };
        Ok(Self { table: Mutex::new(table), count_max, age_max })
    }

    /// Keeps a snapshot; returns its number, which is not 0.
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
        table.held.insert(number, Held { snapshot, until: now + self.age_max });
        Ok(number)
    }

    /// The snapshot with a number.
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

    /// Gives one back. It may have ended by itself.
    pub fn close(&self, number: u64) {
        self.table.lock().held.remove(&number);
    }

    pub fn count(&self) -> usize {
        self.table.lock().held.len()
    }

    /// Ends old ones. Returns when the next one will be old.
    fn end_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut table = self.table.lock();
        table.held.retain(|_, held| held.until > now);
        let next = table.held.values().map(|held| held.until).min();
        table.is_watched = next.is_some();
        next
    }

    /// Has old ones ended even if nobody asks for any more. It costs nothing while there is none.
    pub fn watch(self: &Arc<Self>) {
        if std::mem::replace(&mut self.table.lock().is_watched, true) {
            return;
        }
        let snapshots = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(next) = snapshots.upgrade().and_then(|snapshots| snapshots.end_old()) {
                tokio::time::sleep_until(next.into()).await;
            }
        });
    }
}

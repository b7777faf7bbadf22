//! The store: records in an LSM tree in one directory.

use crate::commits::{Change, Commits, Durability, commit};
use crate::limits::StoreLimits;
use crate::snapshots::Snapshots;
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use std::fs::DirBuilder;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Durability of writes.
    pub durability: Durability,
    /// Limits of requests.
    pub limits: StoreLimits,
    /// Capacity in bytes of the cache for blocks read from the tree. Written records that are not yet in files take up
    /// to 64 MiB more.
    pub cache_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { durability: Durability::default(), limits: StoreLimits::default(), cache_bytes: 64 << 20 }
    }
}

/// Error of a store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory cannot be used.
    #[error("cannot use the directory {path:?}")]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system call.
        source: Arc<io::Error>,
    },
    /// Another process has the store open.
    #[error("another process has the store in {0:?} open")]
    Locked(PathBuf),
    /// The directory contains other data, or the store is damaged.
    #[error("cannot open the store in {path:?}")]
    Open {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the LSM tree.
        source: Arc<fjall::Error>,
    },
    /// The configured key length exceeds the limit of the tree.
    #[error("keys may be at most {0} bytes long")]
    Limits(usize),
    /// A key is empty or too long.
    #[error("a key has 1 to {len_bytes_max} bytes; this one has {len_bytes}")]
    Key {
        /// Length in bytes.
        len_bytes: usize,
        /// The limit.
        len_bytes_max: usize,
    },
    /// A value is too long.
    #[error("a value has up to {len_bytes_max} bytes; this one has {len_bytes}")]
    Value {
        /// Length in bytes.
        len_bytes: usize,
        /// The limit.
        len_bytes_max: usize,
    },
    /// A batch has too many changes, or too long ones.
    #[error(
        "a batch has up to {changes_max} changes and {bytes_max} bytes; this one has {changes} and {bytes}"
    )]
    Batch {
        /// Number of changes.
        changes: usize,
        /// Total length of keys and values in bytes.
        bytes: usize,
        /// The limit of changes.
        changes_max: usize,
        /// The limit of bytes.
        bytes_max: usize,
    },
    /// The snapshot has expired, was closed, or never existed.
    #[error("there is no snapshot {0}: it is too old, or was closed; open another one")]
    NoSnapshot(u64),
    /// The maximum number of snapshots exists already.
    #[error("there are {count_max} snapshots and iterators already; close one, or try again later")]
    TooManySnapshots {
        /// The limit.
        count_max: usize,
    },
    /// The maximum amount of writes waits for the disk already.
    #[error("{waiting_bytes_max} bytes of writes wait for the disk already; try again later")]
    Busy {
        /// The limit.
        waiting_bytes_max: usize,
    },
    /// The store was closed during the write. Whether the write was executed is not known.
    #[error("the store is being closed")]
    Closed,
    /// The disk or the files on it failed. After a failed write the store rejects all others, because the contents of
    /// the disk are not known.
    #[error("the store failed: {0}; check its disk, then restart it")]
    Failed(Arc<fjall::Error>),
}

impl StoreError {
    pub(crate) fn failed(error: fjall::Error) -> Self {
        Self::Failed(Arc::new(error))
    }
}

/// Records of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Keys and values, in the order of keys.
    pub records: Vec<(Bytes, Bytes)>,
    /// The key of the next record; empty if there is none.
    pub next: Bytes,
}

/// Records in the order of their keys, on disk.
///
/// Reads and, with [`Durability::Process`], writes are executed by the calling thread; they may wait for the disk.
pub struct OrderedStore {
    // Drop order: first, because dropping it commits the queued writes.
    commits: Commits,
    records: Keyspace,
    database: Database,
    snapshots: Arc<Snapshots>,
    limits: StoreLimits,
}

impl OrderedStore {
    /// Opens the store in a directory, which is created with access for the current user only if it does not exist.
    /// All acknowledged writes are restored, as far as their durability permits.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used, another process uses it, or it contains no valid store.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let StoreOptions { durability, limits, cache_bytes } = options;
        if limits.key_bytes_max > StoreLimits::KEY_BYTES_MOST {
            return Err(StoreError::Limits(StoreLimits::KEY_BYTES_MOST));
        }
        let unusable = |source| StoreError::Directory { path: path.to_owned(), source: Arc::new(source) };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let not_open = |error| match error {
            fjall::Error::Locked => StoreError::Locked(path.to_owned()),
            source => StoreError::Open { path: path.to_owned(), source: Arc::new(source) },
        };
        let database = Database::builder(path).cache_size(cache_bytes).open().map_err(not_open)?;
        let records = database.keyspace("records", KeyspaceCreateOptions::default).map_err(not_open)?;
        let commits =
            Commits::start(durability, limits.waiting_bytes_max, &database, &records).map_err(unusable)?;
        let snapshots =
            Arc::new(Snapshots::new(limits.snapshots_max, limits.snapshot_age_max).map_err(unusable)?);
        Ok(Self { commits, records, database, snapshots, limits })
    }

    /// Returns the limits of requests.
    #[must_use]
    pub fn limits(&self) -> &StoreLimits {
        &self.limits
    }

    /// Returns the value of a key, at present or in a snapshot.
    ///
    /// # Errors
    /// Returns an error if the key is invalid, the snapshot does not exist, or the disk fails.
    pub fn get(&self, key: &[u8], snapshot: Option<u64>) -> Result<Option<Bytes>, StoreError> {
        self.check_key(key)?;
        let value = match snapshot {
            None => self.records.get(key),
            Some(number) => self.snapshots.get(number)?.get(&self.records, key),
        };
        Ok(value.map_err(StoreError::failed)?.map(Bytes::from))
    }

    /// Applies changes atomically. Of several changes of a key the last one takes effect. Resolves when they are as
    /// durable as [`StoreOptions::durability`] requires. They are applied even if this future is dropped after its
    /// first poll.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded or the disk fails.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.check(&changes)?;
        match &self.commits {
            Commits::Caller => commit(&self.database, &self.records, changes, PersistMode::Buffer),
            Commits::Thread(committer) => committer.write(changes).await,
        }
    }

    /// Returns the first records from `start` on and before `end` (to the last record if `end` is empty): up to
    /// `limit`, and no more than a page may have. Reads the present state, or a snapshot.
    ///
    /// # Errors
    /// Returns the errors of [`Self::get`].
    pub fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        snapshot: Option<u64>,
    ) -> Result<Page, StoreError> {
        for bound in [start, end] {
            if !bound.is_empty() {
                self.check_key(bound)?;
            }
        }
        let snapshot = match snapshot {
            None => self.database.snapshot(),
            Some(number) => self.snapshots.get(number)?,
        };
        let mut page = Page { records: Vec::new(), next: Bytes::new() };
        if !end.is_empty() && start >= end {
            return Ok(page);
        }
        let from = if start.is_empty() { Bound::Unbounded } else { Bound::Included(start) };
        let to = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
        let most = self.limits.page_records_max.max(1);
        let limit = if limit == 0 { most } else { limit.min(most) };
        let mut len_bytes = 0;
        for record in snapshot.range::<&[u8], _>(&self.records, (from, to)) {
            if page.records.len() == limit || len_bytes >= self.limits.page_bytes_max {
                page.next = record.key().map_err(StoreError::failed)?.into();
                break;
            }
            let (key, value) = record.into_inner().map_err(StoreError::failed)?;
            len_bytes += key.len() + value.len();
            page.records.push((key.into(), value.into()));
        }
        Ok(page)
    }

    /// Opens a snapshot of all records and returns its number, which is not 0. It expires after
    /// [`StoreLimits::snapshot_age_max`]. If this is called in a tokio runtime, its resources are released then, too.
    ///
    /// # Errors
    /// Returns an error if the maximum number of snapshots exists.
    pub fn open_snapshot(&self) -> Result<u64, StoreError> {
        let number = self.snapshots.open(self.database.snapshot())?;
        if tokio::runtime::Handle::try_current().is_ok() {
            self.snapshots.watch();
        }
        Ok(number)
    }

    /// Checks that a snapshot exists.
    ///
    /// # Errors
    /// Returns an error if it does not.
    pub fn check_snapshot(&self, number: u64) -> Result<(), StoreError> {
        self.snapshots.get(number).map(drop)
    }

    /// Closes a snapshot, unless it has already expired.
    pub fn close_snapshot(&self, number: u64) {
        self.snapshots.close(number);
    }

    /// Returns the number of open snapshots.
    #[must_use]
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.count()
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        let (len_bytes, len_bytes_max) = (key.len(), self.limits.key_bytes_max);
        if (1..=len_bytes_max).contains(&len_bytes) {
            return Ok(());
        }
        Err(StoreError::Key { len_bytes, len_bytes_max })
    }

    fn check(&self, changes: &[Change]) -> Result<(), StoreError> {
        let mut bytes = 0;
        for change in changes {
            self.check_key(change.key())?;
            if let Change::Put(_, value) = change
                && value.len() > self.limits.value_bytes_max
            {
                let (len_bytes, len_bytes_max) = (value.len(), self.limits.value_bytes_max);
                return Err(StoreError::Value { len_bytes, len_bytes_max });
            }
            bytes += change.len_bytes();
        }
        let StoreLimits { batch_changes_max: changes_max, batch_bytes_max: bytes_max, .. } = self.limits;
        // A single change may be as long as the limits of a record permit.
        if changes.len() > 1 && (changes.len() > changes_max || bytes > bytes_max) {
            return Err(StoreError::Batch { changes: changes.len(), bytes, changes_max, bytes_max });
        }
        Ok(())
    }
}

impl std::fmt::Debug for OrderedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderedStore").field("limits", &self.limits).finish_non_exhaustive()
    }
}

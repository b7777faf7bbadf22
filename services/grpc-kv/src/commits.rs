//! Commit of writes, and their durability.

use crate::store::StoreError;
use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Failures that an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Exit of this process at any time: the kernel has the data. A crash of the machine can lose the last writes, but
    /// never a write without all later ones.
    Process,
    /// Crash of the machine as well: the disk has the data (fdatasync). Writes that wait at the same time share one
    /// fdatasync.
    #[default]
    Group,
    /// Like `Group`, with one fdatasync per write.
    Each,
}

/// A change of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes the record.
    Put(Bytes, Bytes),
    /// Removes the record.
    Delete(Bytes),
}

impl Change {
    pub(crate) fn key(&self) -> &Bytes {
        let (Self::Put(key, _) | Self::Delete(key)) = self;
        key
    }

    /// Returns the length of key and value in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            Self::Delete(key) => key.len(),
        }
    }
}

/// A write queued for the commit thread.
struct QueuedWrite {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), StoreError>>,
    permit: QueuePermit,
}

/// Queue capacity reserved by a waiting write; released on drop.
struct QueuePermit {
    queued_bytes: Arc<AtomicUsize>,
    len_bytes: usize,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.queued_bytes.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

/// Maximum number of writes in one commit.
const GROUP_MAX: usize = 1_024;
/// Queue capacity in bytes that each waiting write takes in addition to its data.
const WRITE_OVERHEAD_BYTES: usize = 128;

/// Executor of commits.
pub(crate) enum Commits {
    /// The calling thread.
    Caller,
    /// A dedicated thread, which waits for the disk.
    Thread(Committer),
}

pub(crate) struct Committer {
    /// `None` while the committer is being dropped.
    sender: Option<Sender<QueuedWrite>>,
    thread: Option<JoinHandle<()>>,
    queued_bytes: Arc<AtomicUsize>,
    waiting_bytes_max: usize,
}

impl Commits {
    pub fn start(
        durability: Durability,
        waiting_bytes_max: usize,
        database: &Database,
        records: &Keyspace,
    ) -> io::Result<Self> {
        let group_max = match durability {
            Durability::Process => return Ok(Self::Caller),
            Durability::Group => GROUP_MAX,
            Durability::Each => 1,
        };
        let (sender, receiver) = mpsc::channel();
        let (database, records) = (database.clone(), records.clone());
        let thread = thread::Builder::new()
            .name("kv-commits".to_owned())
            .spawn(move || serve(&receiver, group_max, &database, &records))?;
        let (sender, thread, queued_bytes) = (Some(sender), Some(thread), Arc::default());
        Ok(Self::Thread(Committer { sender, thread, queued_bytes, waiting_bytes_max }))
    }
}

impl Committer {
    /// Queues changes for the commit thread and resolves when they are on the disk. They are written even if this
    /// future is dropped.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let len_bytes = changes.iter().map(|change| change.len_bytes() + WRITE_OVERHEAD_BYTES).sum::<usize>();
        let before = self.queued_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        let permit = QueuePermit { queued_bytes: Arc::clone(&self.queued_bytes), len_bytes };
        // A batch longer than the whole queue capacity is accepted if the queue is empty.
        if before > 0 && before + len_bytes > self.waiting_bytes_max {
            return Err(StoreError::Busy { waiting_bytes_max: self.waiting_bytes_max });
        }
        let (done, ended) = oneshot::channel();
        let sent = self
            .sender
            .as_ref()
            .is_some_and(|sender| sender.send(QueuedWrite { changes, done, permit }).is_ok());
        if !sent {
            return Err(StoreError::Closed);
        }
        ended.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        // The thread commits all queued writes, then exits.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Commits queued writes in FIFO order.
fn serve(receiver: &Receiver<QueuedWrite>, group_max: usize, database: &Database, records: &Keyspace) {
    while let Ok(first) = receiver.recv() {
        let mut group = vec![first];
        while group.len() < group_max
            && let Ok(next) = receiver.try_recv()
        {
            group.push(next);
        }
        let changes = group.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.changes));
        let committed = commit(database, records, changes, PersistMode::SyncData);
        for QueuedWrite { done, permit, .. } in group {
            // Released before the caller can submit its next write.
            drop(permit);
            // The receiver is gone if the call was cancelled.
            let _ = done.send(committed.clone());
        }
    }
}

/// Commits changes atomically, together with all earlier ones.
pub(crate) fn commit(
    database: &Database,
    records: &Keyspace,
    changes: impl IntoIterator<Item = Change>,
    persist: PersistMode,
) -> Result<(), StoreError> {
    // All changes of a commit have the same sequence number in the tree, so it may contain at most one per key.
    let mut last = BTreeMap::new();
    for change in changes {
        match change {
            Change::Put(key, value) => last.insert(key, Some(value)),
            Change::Delete(key) => last.insert(key, None),
        };
    }
    let mut batch = database.batch().durability(Some(persist));
    for (key, value) in &last {
        // Copied: a slice of the received message would keep all of it in memory.
        match value {
            Some(value) => batch.insert(records, &key[..], &value[..]),
            None => batch.remove(records, &key[..]),
        }
    }
    batch.commit().map_err(StoreError::failed)
}

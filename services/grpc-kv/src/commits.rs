//! Writes, and what they survive.

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

/// What a write that was answered survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The end of this process, at any moment: the system has it. The end of the machine can take the last writes, never
    /// one without those after it.
    Process,
    /// The end of the machine, too: the disk has it (fdatasync). Writes that wait at the same time share one.
    #[default]
    Group,
    /// The same, with one fdatasync for each write.
    Each,
}

/// A change of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes it.
    Put(Bytes, Bytes),
    /// Removes it.
    Delete(Bytes),
}

impl Change {
    pub(crate) fn key(&self) -> &Bytes {
        let (Self::Put(key, _) | Self::Delete(key)) = self;
        key
    }

    /// Key and value.
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            Self::Delete(key) => key.len(),
        }
    }
}

/// Changes that a thread writes.
struct Waiting {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), StoreError>>,
    room: Room,
}

/// The room that a waiting write takes.
struct Room {
    taken: Arc<AtomicUsize>,
    len_bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

/// Writes of one commit of the thread.
const GROUP_MAX: usize = 1_024;
/// What each waiting write takes beside its bytes.
const WRITE_OVERHEAD_BYTES: usize = 128;

/// Who writes.
pub(crate) enum Commits {
    /// The caller.
    Caller,
    /// A thread, which waits for the disk.
    Thread(Committer),
}

pub(crate) struct Committer {
    /// Taken when it ends.
    sender: Option<Sender<Waiting>>,
    thread: Option<JoinHandle<()>>,
    taken: Arc<AtomicUsize>,
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
        let (sender, thread, taken) = (Some(sender), Some(thread), Arc::default());
        Ok(Self::Thread(Committer { sender, thread, taken, waiting_bytes_max }))
    }
}

impl Committer {
    /// Has changes written; resolves when they are on the disk. They are written even if nobody waits.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let len_bytes = changes.iter().map(|change| change.len_bytes() + WRITE_OVERHEAD_BYTES).sum::<usize>();
        let before = self.taken.fetch_add(len_bytes, Ordering::Relaxed);
        let room = Room { taken: Arc::clone(&self.taken), len_bytes };
        // A batch that is longer than all room may go alone.
        if before > 0 && before + len_bytes > self.waiting_bytes_max {
            return Err(StoreError::Busy { waiting_bytes_max: self.waiting_bytes_max });
        }
        let (done, ended) = oneshot::channel();
        let sent =
            self.sender.as_ref().is_some_and(|sender| sender.send(Waiting { changes, done, room }).is_ok());
        if !sent {
            return Err(StoreError::Closed);
        }
        ended.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        // What waits is written; then the thread ends.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Writes what comes, in the order in which it comes.
fn serve(receiver: &Receiver<Waiting>, group_max: usize, database: &Database, records: &Keyspace) {
    while let Ok(first) = receiver.recv() {
        let mut group = vec![first];
        while group.len() < group_max
            && let Ok(next) = receiver.try_recv()
        {
            group.push(next);
        }
        let changes = group.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.changes));
        let committed = commit(database, records, changes, PersistMode::SyncData);
        for Waiting { done, room, .. } in group {
            // Before its caller can write again.
            drop(room);
            // Who gave the call up does not hear it.
            let _ = done.send(committed.clone());
        }
    }
}

/// Writes changes, all or none, with those before them.
pub(crate) fn commit(
    database: &Database,
    records: &Keyspace,
    changes: impl IntoIterator<Item = Change>,
    persist: PersistMode,
) -> Result<(), StoreError> {
    // All changes of a commit have one number in the tree, so it may hold one for each key.
    let mut last = BTreeMap::new();
    for change in changes {
        match change {
            Change::Put(key, value) => last.insert(key, Some(value)),
            Change::Delete(key) => last.insert(key, None),
        };
    }
    let mut batch = database.batch().durability(Some(persist));
    for (key, value) in &last {
        // Copied: what came is a part of a message, and would keep all of it.
        match value {
            Some(value) => batch.insert(records, &key[..], &value[..]),
            None => batch.remove(records, &key[..]),
        }
    }
    batch.commit().map_err(StoreError::failed)
}

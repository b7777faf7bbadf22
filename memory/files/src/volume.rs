//! A tree together with the memory of its blocks: operations that wait for memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use farcall_memory::RemoteMemory;
use rustix::time::{ClockId, clock_gettime};

use crate::fuse::{Request, execute};
use crate::journal::Journal;
use crate::log::Log;
use crate::memory_error::errno;
use crate::record::{PendingChange, Record};
use crate::tree::{Allocate, Attributes, Load, Result, Store, Time, Tree};

/// Number of locks for the data of files. Files that share a lock sometimes wait for each other.
const LOCKS: usize = 128;
/// Interval between two checks whether this process holds the volume again.
const EXCLUSIVE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Storage of blocks.
pub trait Memory: Send + Sync {
    /// Reads `len_bytes` bytes from offset `at` on, and appends them to `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be read. Wrong bytes are never appended, but correct ones before the
    /// failure may be.
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()>;

    /// Writes bytes. Returns when they are as durable as the memory guarantees.
    ///
    /// # Errors
    /// Returns an error if the write may not have been executed.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Returns the time for which this process is certain to hold the memory, so that no other client changes it;
    /// `None` if it is not certain to hold it.
    fn exclusive_for(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    /// Returns whether this process has lost the memory for good.
    fn is_lost(&self) -> bool {
        false
    }
}

impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        (**self).read(at, len_bytes, bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        (**self).write(at, bytes)
    }

    fn exclusive_for(&self) -> Option<Duration> {
        (**self).exclusive_for()
    }

    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }
}

impl Memory for RemoteMemory {
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.append(at, len_bytes, bytes).map_err(|error| errno(at, error))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Self::write(self, at, bytes).map_err(|error| errno(at, error))
    }

    fn exclusive_for(&self) -> Option<Duration> {
        Self::exclusive_for(self)
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }
}

/// A tree and the memory of its files.
pub struct Volume {
    tree: Mutex<Tree>,
    memory: Box<dyn Memory>,
    /// Locks of file data, by inode. Shared while data is read, exclusive while it changes. Invariant: no block is
    /// given to another file while it is being read.
    locks: [RwLock<()>; LOCKS],
    /// Journal for the next process. Lock order: after `tree`.
    journal: Option<Mutex<Journal>>,
    /// Log on memory nodes, for a later mount.
    log: Option<Arc<Log>>,
    era: u16,
    is_restarted: bool,
    /// Held shared from the begin of a request until its reply is sent.
    reply_guard: RwLock<()>,
    last_plan: AtomicU64,
}

impl Volume {
    /// Creates a volume from a tree and its memory.
    pub fn new(tree: Tree, memory: Box<dyn Memory>) -> Self {
        Self {
            tree: Mutex::new(tree),
            memory,
            locks: [const { RwLock::new(()) }; LOCKS],
            journal: None,
            log: None,
            era: 0,
            is_restarted: false,
            reply_guard: RwLock::new(()),
            last_plan: AtomicU64::new(0),
        }
    }

    /// Creates a volume with a journal, from which another process can resume if it can resume the memory.
    pub fn with_journal(tree: Tree, memory: Box<dyn Memory>, mut journal: Journal) -> Self {
        journal.begin(&tree);
        let (log, era, is_restarted) = (journal.log().cloned(), journal.era(), journal.is_restarted());
        Self { journal: Some(Mutex::new(journal)), log, era, is_restarted, ..Self::new(tree, memory) }
    }

    /// Writes all changes so far to memory nodes, for a later mount.
    ///
    /// # Errors
    /// Returns an error if this fails: `ENOSPC` if the metadata area is full, `ENOTCONN` if another mount may hold the
    /// volume.
    pub fn sync(&self) -> Result<()> {
        self.log.as_ref().map_or(Ok(()), |log| log.sync())
    }

    /// Waits until this process is certain to hold the volume, and returns the time for which it is; `None` if it has
    /// lost the volume for good. Data read before is valid: no other client held the volume in the meantime.
    pub(crate) fn wait_until_exclusive(&self) -> Option<Duration> {
        loop {
            match self.memory.exclusive_for() {
                None if self.memory.is_lost() => return None,
                None => std::thread::sleep(EXCLUSIVE_CHECK_INTERVAL),
                valid => return valid,
            }
        }
    }

    /// Returns whether this process has lost the volume: another process, here or elsewhere, may hold it.
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Returns the era in which the kernel's requests are handled.
    pub(crate) const fn era(&self) -> u16 {
        self.era
    }

    /// Returns whether another mount changed the tree after the previous process held it.
    pub(crate) const fn is_restarted(&self) -> bool {
        self.is_restarted
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }

    fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        // A panic is a bug and was printed. The journal stays usable, like the tree.
        self.journal.as_ref().map(|journal| journal.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, _tree: &MutexGuard<'_, Tree>, record: &Record<'_>) {
        if let Some(mut journal) = self.journal() {
            journal.add(record);
        }
    }

    /// Called at the begin of a request. The returned guard must be held until the reply is sent.
    pub(crate) fn reply_guard(&self) -> RwLockReadGuard<'_, ()> {
        if self.journal().is_some_and(|journal| journal.is_long()) {
            // Exclusive: replies to all requests in the journal have been sent then.
            let _alone = self.reply_guard.write().unwrap_or_else(PoisonError::into_inner);
            let tree = self.tree();
            if let Some(mut journal) = self.journal().filter(|journal| journal.is_long()) {
                journal.begin(&tree);
            }
        }
        self.reply_guard.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request on the tree alone.
    pub(crate) fn execute(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<()> {
        let (mut tree, now) = (self.tree(), now());
        let outcome = execute(&mut tree, request, now, reply);
        if !request.is_lookup_of_nothing(reply) {
            self.record(&tree, &Record::Executed { now, request: request.bytes });
        }
        outcome
    }

    /// Like [`Volume::execute`], for requests that may free blocks for other files.
    pub(crate) fn execute_exclusively(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<()> {
        self.exclusively(request.node, || self.execute(request, reply))
    }

    /// Appends the reply of the previous process to a resent request, if it had executed it.
    pub(crate) fn earlier_reply(&self, unique: u64, reply: &mut Vec<u8>) -> Option<Result<()>> {
        self.journal()?.earlier_reply(unique, reply)
    }

    pub(crate) fn accessed(&self, tree: &mut MutexGuard<'_, Tree>, ino: u64) {
        let now = now();
        if tree.accessed(ino, now) {
            self.record(tree, &Record::Accessed { ino, now });
        }
    }

    /// Locks the tree. The lock is never held while the volume waits for memory.
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        // A panic is a bug and was printed. The tree stays usable: each operation validates the state that it finds.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, ino: u64) -> &RwLock<()> {
        &self.locks[(ino % LOCKS as u64) as usize]
    }

    /// Calls `work` with exclusive access to the data of a file.
    fn exclusively<T>(&self, ino: u64, work: impl FnOnce() -> T) -> T {
        let _guard = self.lock(ino).write().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// Reads a range of a file and appends it to `bytes`.
    ///
    /// # Errors
    /// Returns `EIO` if memory nodes cannot supply the data.
    pub fn read(&self, ino: u64, offset: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let _guard = self.lock(ino).read().unwrap_or_else(PoisonError::into_inner);
        let loads = {
            let mut tree = self.tree();
            self.accessed(&mut tree, ino);
            tree.plan_read(ino, offset, len_bytes)?
        };
        for Load { at, len_bytes } in loads {
            match at {
                Some(at) => self.memory.read(at, len_bytes, bytes)?,
                None => bytes.resize(bytes.len() + len_bytes, 0),
            }
        }
        Ok(())
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// Returns `ENOSPC`, `EFBIG` or `EIO`. The length of the file is unchanged then, and each overwritten byte has its
    /// old or its new value.
    pub fn write(&self, ino: u64, offset: u64, bytes: &[u8]) -> Result<Attributes> {
        self.store(PendingChange::Write { ino, offset, len_bytes: bytes.len() }, bytes)
    }

    /// Changes the length of a file.
    ///
    /// # Errors
    /// Returns the errors of [`Volume::write`].
    pub fn resize(&self, ino: u64, len_bytes: u64) -> Result<Attributes> {
        self.store(PendingChange::Resize { ino, len_bytes }, &[])
    }

    /// Removes the privileges of a file that a write ends. Returns whether it had any.
    pub(crate) fn drop_privileges(&self, ino: u64, set_ids: bool) -> bool {
        let (mut tree, now) = (self.tree(), now());
        let has_changed = tree.drop_privileges(ino, set_ids, now);
        if has_changed {
            self.record(&tree, &Record::PrivilegesDropped { ino, set_ids, now });
        }
        has_changed
    }

    pub(crate) fn allocate(
        &self,
        ino: u64,
        offset: u64,
        len_bytes: u64,
        how: Allocate,
        keep_size: bool,
    ) -> Result<Attributes> {
        self.store(PendingChange::Allocate { ino, offset, len_bytes, how, keep_size }, &[])
    }

    /// Handles the kernel's release of references to an inode. The file may be removed, and its blocks reused.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        self.exclusively(ino, || {
            let mut tree = self.tree();
            tree.forget(ino, lookups);
            self.record(&tree, &Record::Forgotten { ino, lookups });
        });
    }

    fn store(&self, change: PendingChange, bytes: &[u8]) -> Result<Attributes> {
        self.exclusively(change.ino(), || {
            let number = self.last_plan.fetch_add(1, Ordering::Relaxed);
            let plan = {
                let mut tree = self.tree();
                let plan = change.plan(&mut tree);
                self.record(&tree, &Record::Planned { number, change });
                plan?
            };
            let synced = if plan.must_sync_first() { self.sync() } else { Ok(()) };
            let mut stores = plan.stores.iter();
            let stored = synced.and_then(|()| stores.try_for_each(|store| self.store_one(store, bytes)));
            let (mut tree, now, is_stored) = (self.tree(), now(), stored.is_ok());
            let finished = tree.finish_write(plan, is_stored, now);
            self.record(&tree, &Record::Finished { number, is_stored, now });
            stored.and(finished)
        })
    }

    fn store_one(&self, store: &Store, bytes: &[u8]) -> Result<()> {
        let data = &bytes[store.data.clone()];
        if store.zeros_before == 0 && store.zeros_after == 0 {
            return self.memory.write(store.at, data);
        }
        let mut padded = vec![0; store.zeros_before];
        padded.extend_from_slice(data);
        padded.resize(padded.len() + store.zeros_after, 0);
        self.memory.write(store.at, &padded)
    }

    /// Returns the memory of the blocks.
    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }
}

/// Returns the wall-clock time.
pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::Realtime);
    Time { seconds: time.tv_sec, nanos: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

//! A tree together with the memory that its bytes are in: operations that wait for memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use farcall_memory::{IoError, RemoteMemory};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::fuse::{Request, ask};
use crate::journal::{Journal, Record, Wish};
use crate::log::Log;
use crate::tree::{Allocate, Attributes, Load, Result, Store, Time, Tree};

/// Locks over the bytes of files: files that share one wait for each other now and then.
const LOCKS: usize = 128;
/// Interval between two checks whether the volume is ours again.
const HELD_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Where the bytes of blocks are.
pub trait Memory: Send + Sync {
    /// Reads `len_bytes` from `at` on, and appends them.
    ///
    /// # Errors
    /// If the bytes cannot be had: never others. What was read before them is appended.
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()>;

    /// Writes: done when it would survive what the memory promises to survive.
    ///
    /// # Errors
    /// If it may not have been done.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// For how long it is ours for sure, if it is: nobody else changes it meanwhile.
    fn held_for(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    /// Whether it is not ours, and never will be again.
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

    fn held_for(&self) -> Option<Duration> {
        (**self).held_for()
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

    fn held_for(&self) -> Option<Duration> {
        Self::held_for(self)
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }
}

/// Programs see a number; the reason is for who looks after them.
pub(crate) fn errno(at: u64, error: IoError) -> Errno {
    tracing::warn!(at, "bytes on memory nodes: {error}");
    match error {
        IoError::NoRoom { .. } => Errno::NOSPC,
        IoError::Fenced => Errno::NOTCONN,
        IoError::ReadOnly => Errno::ROFS,
        _ => Errno::IO,
    }
}

/// A tree and the memory of its files.
pub struct Volume {
    tree: Mutex<Tree>,
    memory: Box<dyn Memory>,
    /// By inode. Shared while bytes are read, exclusive while they change: no block is given to another file while
    /// somebody reads it.
    locks: [RwLock<()>; LOCKS],
    /// For a process after this one; taken after the tree.
    journal: Option<Mutex<Journal>>,
    /// The same at memory nodes, for a mount after this one.
    log: Option<Arc<Log>>,
    era: u16,
    is_restarted: bool,
    /// Shared from when a request is begun until it is answered.
    answering: RwLock<()>,
    last_plan: AtomicU64,
}

impl Volume {
    /// Puts them together.
    pub fn new(tree: Tree, memory: Box<dyn Memory>) -> Self {
        Self {
            tree: Mutex::new(tree),
            memory,
            locks: [const { RwLock::new(()) }; LOCKS],
            journal: None,
            log: None,
            era: 0,
            is_restarted: false,
            answering: RwLock::new(()),
            last_plan: AtomicU64::new(0),
        }
    }

    /// Puts them together so that another process can go on with both, if it can with the memory.
    pub fn kept(tree: Tree, memory: Box<dyn Memory>, mut journal: Journal) -> Self {
        journal.begin(&tree);
        let (log, era, is_restarted) = (journal.log().cloned(), journal.era(), journal.is_restarted());
        Self { journal: Some(Mutex::new(journal)), log, era, is_restarted, ..Self::new(tree, memory) }
    }

    /// All that has happened so far is at memory nodes, for a mount after this one.
    ///
    /// # Errors
    /// If it is not: `ENOSPC` if their notes are full, `ENOTCONN` if another mount may have the volume.
    pub fn sync(&self) -> Result<()> {
        self.log.as_ref().map_or(Ok(()), |log| log.sync())
    }

    /// Waits until it is known that the volume is ours, and returns for how long it is for sure; `None` if it never will
    /// be again. What was read before is right: nobody else had it meanwhile.
    pub(crate) fn wait_until_held(&self) -> Option<Duration> {
        loop {
            match self.memory.held_for() {
                None if self.memory.is_lost() => return None,
                None => std::thread::sleep(HELD_CHECK_INTERVAL),
                valid => return valid,
            }
        }
    }

    /// Whether the volume is lost to this process: another one, here or elsewhere, may have it.
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// The era in which the kernel's requests are answered.
    pub(crate) const fn era(&self) -> u16 {
        self.era
    }

    /// Whether another mount changed the tree after the process before this one had it.
    pub(crate) const fn is_restarted(&self) -> bool {
        self.is_restarted
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }

    fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        // As below.
        self.journal.as_ref().map(|journal| journal.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, _tree: &MutexGuard<'_, Tree>, record: &Record<'_>) {
        if let Some(mut journal) = self.journal() {
            journal.add(record);
        }
    }

    /// A request is begun; what is returned is held until it was answered.
    pub(crate) fn answering(&self) -> RwLockReadGuard<'_, ()> {
        if self.journal().is_some_and(|journal| journal.is_long()) {
            // All that is in the journal was answered then.
            let _alone = self.answering.write().unwrap_or_else(PoisonError::into_inner);
            let tree = self.tree();
            if let Some(mut journal) = self.journal().filter(|journal| journal.is_long()) {
                journal.begin(&tree);
            }
        }
        self.answering.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the tree alone answer a request.
    pub(crate) fn ask(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<()> {
        let (mut tree, now) = (self.tree(), now());
        let outcome = ask(&mut tree, request, now, reply);
        if !request.is_lookup_of_nothing(reply) {
            self.note(&tree, &Record::Asked { now, request: request.bytes });
        }
        outcome
    }

    /// As [`Volume::ask`], when blocks may go to other files.
    pub(crate) fn ask_alone(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<()> {
        self.alone(request.node, || self.ask(request, reply))
    }

    /// What the process before this one answered to a request that the kernel makes again, if it had done it.
    pub(crate) fn earlier(&self, unique: u64, reply: &mut Vec<u8>) -> Option<Result<()>> {
        self.journal()?.earlier(unique, reply)
    }

    pub(crate) fn accessed(&self, tree: &mut MutexGuard<'_, Tree>, ino: u64) {
        let now = now();
        if tree.accessed(ino, now) {
            self.note(tree, &Record::Accessed { ino, now });
        }
    }

    /// The tree. It is never held while memory is waited for.
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        // A panic inside is a bug of ours that was printed; each operation checks what it finds.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, ino: u64) -> &RwLock<()> {
        &self.locks[(ino % LOCKS as u64) as usize]
    }

    /// Runs alone with a file's bytes.
    fn alone<T>(&self, ino: u64, work: impl FnOnce() -> T) -> T {
        let _guard = self.lock(ino).write().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// Appends what a file has in a range.
    ///
    /// # Errors
    /// `EIO` if memory nodes do not have it.
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

    /// Writes.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EIO`: the file is as long as it was; what was overwritten holds what it held, or what was
    /// written.
    pub fn write(&self, ino: u64, offset: u64, bytes: &[u8]) -> Result<Attributes> {
        self.store(Wish::Write { ino, offset, len_bytes: bytes.len() }, bytes)
    }

    /// Gives a file another length.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn resize(&self, ino: u64, len_bytes: u64) -> Result<Attributes> {
        self.store(Wish::Resize { ino, len_bytes }, &[])
    }

    /// Removes what a file must not have any more when it is written to. Returns whether anything has changed.
    pub(crate) fn drop_privileges(&self, ino: u64, set_ids: bool) -> bool {
        let (mut tree, now) = (self.tree(), now());
        let has_changed = tree.drop_privileges(ino, set_ids, now);
        if has_changed {
            self.note(&tree, &Record::PrivilegesDropped { ino, set_ids, now });
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
        self.store(Wish::Allocate { ino, offset, len_bytes, how, keep_size }, &[])
    }

    /// The kernel knows an inode less often: the file may go, and its blocks to others.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        self.alone(ino, || {
            let mut tree = self.tree();
            tree.forget(ino, lookups);
            self.note(&tree, &Record::Forgot { ino, lookups });
        });
    }

    fn store(&self, wish: Wish, bytes: &[u8]) -> Result<Attributes> {
        self.alone(wish.ino(), || {
            let number = self.last_plan.fetch_add(1, Ordering::Relaxed);
            let plan = {
                let mut tree = self.tree();
                let plan = wish.plan(&mut tree);
                self.note(&tree, &Record::Planned { number, wish });
                plan?
            };
            let known = if plan.must_be_known() { self.sync() } else { Ok(()) };
            let mut stores = plan.stores.iter();
            let stored = known.and_then(|()| stores.try_for_each(|store| self.store_one(store, bytes)));
            let (mut tree, now, is_stored) = (self.tree(), now(), stored.is_ok());
            let finished = tree.finish_write(plan, is_stored, now);
            self.note(&tree, &Record::Finished { number, is_stored, now });
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

    /// Where its bytes are.
    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }
}

/// The time of day.
pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::Realtime);
    Time { seconds: time.tv_sec, nanos: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

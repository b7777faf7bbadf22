//! A tree together with the memory that its bytes are in: operations that wait for memory.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use farcall_memory::{IoError, RemoteMemory};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::tree::{Allocate, Attributes, Result, Store, Time, Tree, WritePlan};

/// Locks over the bytes of files: files that share one wait for each other now and then.
const LOCKS: usize = 128;

/// Where the bytes of blocks are.
pub trait Memory: Send + Sync {
    /// Reads.
    ///
    /// # Errors
    /// If the bytes cannot be had: never others.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Writes: done when it would survive what the memory promises to survive.
    ///
    /// # Errors
    /// If it may not have been done.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;
}

impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        (**self).read(at, bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        (**self).write(at, bytes)
    }
}

impl Memory for RemoteMemory {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        Self::read(self, at, bytes).map_err(errno)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Self::write(self, at, bytes).map_err(errno)
    }
}

const fn errno(error: IoError) -> Errno {
    match error {
        IoError::NoRoom { .. } => Errno::NOSPC,
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
}

impl Volume {
    /// Puts them together.
    pub fn new(tree: Tree, memory: Box<dyn Memory>) -> Self {
        Self { tree: Mutex::new(tree), memory, locks: [const { RwLock::new(()) }; LOCKS] }
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
            tree.accessed(ino, now());
            tree.plan_read(ino, offset, len_bytes)?
        };
        for load in loads {
            let from = bytes.len();
            bytes.resize(from + load.len_bytes, 0);
            if let Some(at) = load.at {
                self.memory.read(at, &mut bytes[from..])?;
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
        self.alone(ino, || {
            let plan = self.tree().plan_write(ino, offset, bytes.len())?;
            self.store(plan, bytes)
        })
    }

    /// Gives a file another length.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn resize(&self, ino: u64, len_bytes: u64) -> Result<Attributes> {
        self.alone(ino, || {
            let plan = self.tree().plan_resize(ino, len_bytes)?;
            self.store(plan, &[])
        })
    }

    pub(crate) fn allocate(
        &self,
        ino: u64,
        offset: u64,
        len_bytes: u64,
        how: Allocate,
        keep_size: bool,
    ) -> Result<Attributes> {
        self.alone(ino, || {
            let plan = self.tree().plan_allocate(ino, offset, len_bytes, how, keep_size)?;
            self.store(plan, &[])
        })
    }

    /// A handle less, or the kernel's knowledge: the file may go, and its blocks to others.
    pub(crate) fn let_go(&self, ino: u64, go: impl FnOnce(&mut Tree)) {
        self.alone(ino, || go(&mut self.tree()));
    }

    fn store(&self, plan: WritePlan, bytes: &[u8]) -> Result<Attributes> {
        let stored = plan.stores.iter().try_for_each(|store| self.store_one(store, bytes));
        let finished = self.tree().finish_write(plan, stored.is_ok(), now());
        stored.and(finished)
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

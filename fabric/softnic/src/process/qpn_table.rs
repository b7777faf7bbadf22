//! Queue pair numbers. The numbers of a block are assigned in random order, so that none can be predicted from others,
//! and each is reused as late as possible.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use farcall_shm::Mutex;
use farcall_verbs::Result;

use super::rendezvous::{BLOCK_QPS, Block, claim_block};
use super::service_thread::Service;

/// Hasher for queue pair numbers. They lie in few blocks; the multiplication spreads them.
#[derive(Default)]
pub(crate) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// Map from queue pair numbers. Unauthorized processes may query any number, but cannot insert keys.
pub(crate) type QpnMap<T> = HashMap<u32, T, BuildHasherDefault<QpnHasher>>;

/// Queue pair numbers of a process, and the objects that they identify.
pub(crate) struct QpnTable<T>(Mutex<Table<T>>);

struct Table<T> {
    blocks: Vec<Arc<Block>>,
    next: u32,
    /// `None` if the number is reserved for an object that is being created.
    entries: QpnMap<Option<T>>,
}

impl<T> Default for QpnTable<T> {
    fn default() -> Self {
        Self(Mutex::new(Table { blocks: Vec::new(), next: 0, entries: QpnMap::default() }))
    }
}

impl<T: Clone> QpnTable<T> {
    /// Creates an object with a new number. The number identifies the second value that `create` returns.
    pub(crate) fn register<M>(
        &self,
        service: &Service,
        create: impl FnOnce(u32) -> Result<(M, T)>,
    ) -> Result<M> {
        let number = self.0.lock().allocate(service)?;
        // Called without the lock: lookups of other numbers must not wait for `create`.
        let made = create(number);
        let mut table = self.0.lock();
        match made {
            Ok((made, entry)) => {
                table.entries.insert(number, Some(entry));
                Ok(made)
            }
            Err(error) => {
                table.entries.remove(&number);
                Err(error)
            }
        }
    }

    pub(crate) fn remove(&self, number: u32) {
        self.0.lock().entries.remove(&number);
    }

    pub(crate) fn get(&self, number: u32) -> Option<T> {
        self.0.lock().entries.get(&number)?.clone()
    }

    /// Returns all objects that have a number.
    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().entries.values().flatten().cloned().collect()
    }
}

impl<T> Table<T> {
    fn allocate(&mut self, service: &Service) -> Result<u32> {
        let capacity = self.blocks.len() as u32 * BLOCK_QPS;
        if self.entries.len() as u32 * 2 >= capacity {
            let block = Arc::new(claim_block()?);
            service.listen(&block)?;
            self.blocks.push(block);
        }
        let capacity = self.blocks.len() as u32 * BLOCK_QPS;
        for _ in 0..capacity {
            let index = self.next;
            self.next = (self.next + 1) % capacity;
            let number = self.blocks[(index / BLOCK_QPS) as usize].qpn(index % BLOCK_QPS);
            if let Entry::Vacant(vacant) = self.entries.entry(number) {
                vacant.insert(None);
                return Ok(number);
            }
        }
        unreachable!("at most half of the numbers are taken");
    }
}

//! Memory regions of this process: lock-free local checks, grants to peers, and generations that peers can read.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farcall_shm::{Mutex, Segment, SharedMem, SharedWord};
use farcall_verbs::{Access, Error, Result, Sge};

use crate::process::service_thread::Service;
use crate::process::shared_remap::{self, Window};

/// Maximum number of regions of a process.
pub(crate) const MAX_REGIONS: usize = 32_768;

/// Number of key bits that hold the low byte of the generation; the others hold the index. A key is therefore not
/// reused immediately after its region.
const KEY_BITS: u32 = 8;

/// Fields read by a lookup by local key. They are separate atomics; a region that is deregistered during the lookup
/// violates the contract of its user.
#[derive(Default)]
struct Entry {
    addr: AtomicU64,
    remote_addr: AtomicU64,
    len_bytes: AtomicU64,
    pd_access: AtomicU64,
}

/// Memory of a region.
#[derive(Clone)]
pub(crate) enum Backing {
    /// A segment of the provider, which peers map.
    Pool(Arc<Segment>),
    /// Memory that the program had already, and the part of it that peers can map. Peers access the rest through this
    /// process's address space or its service thread.
    Private { addr: u64, window: Option<Window> },
}

impl Backing {
    fn addr(&self) -> u64 {
        match self {
            Self::Pool(segment) => segment.base() as u64,
            Self::Private { addr, .. } => *addr,
        }
    }

    /// Reverts the changes to the program's memory that allowed peers to map it.
    pub(crate) fn restore_private(&self, service: &Service) {
        if let Self::Private { window: Some(window), .. } = self {
            shared_remap::restore_private(service, window);
        }
    }
}

/// Length of a region, and the address by which peers refer to its first byte.
#[derive(Clone, Copy)]
pub(crate) struct RegionSpan {
    pub(crate) len_bytes: usize,
    pub(crate) remote_addr: u64,
}

/// Kinds of grants of a region.
#[derive(Clone, Copy, Default)]
pub(crate) struct GrantUse {
    /// Granted for one-sided access.
    pub(crate) remote: bool,
    /// Granted for writing messages to posted receives.
    pub(crate) receive: bool,
}

struct RegionBookkeeping {
    backing: Vec<Option<Backing>>,
    granted: Vec<GrantUse>,
    next_generation: Vec<u32>,
    free: Vec<u32>,
}

pub(crate) struct RegionTable {
    /// Generation of each registered region, 0 if there is none. Peers map this segment to check their grants.
    generations: SharedMem,
    pub(crate) segment: Segment,
    entries: Box<[Entry]>,
    /// Number of revoked regions. After an increment, earlier checks may no longer hold.
    revocations: AtomicU64,
    bookkeeping: Mutex<RegionBookkeeping>,
}

/// Memory as specified by a peer.
pub(crate) struct RemoteRange {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u32,
}

/// A region of this process, for checks of its own requests.
pub(crate) struct LocalRegion {
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
    pub(crate) access: Access,
    /// Word that equals `generation` while the region is registered.
    pub(crate) word: SharedWord,
    pub(crate) generation: u64,
}

/// A region as granted to a peer.
pub(crate) struct Grant {
    pub(crate) backing: Backing,
    /// Address of the first byte in the peer's requests; for receives, the address of the memory.
    pub(crate) addr: u64,
    /// Address of the first byte in this process.
    pub(crate) memory_addr: u64,
    pub(crate) len_bytes: u64,
    pub(crate) generation: u32,
    pub(crate) access: Access,
}

const fn index_of(key: u32) -> usize {
    (key >> KEY_BITS) as usize
}

impl RegionTable {
    pub(crate) fn new() -> Result<Self> {
        let segment = Segment::create("farcall-regions", MAX_REGIONS * 8)?;
        // A process that is not granted a key must not be able to guess it, so the order of indices and the first
        // generations are random.
        let random = RandomState::new();
        let mut free: Vec<u32> = (0..MAX_REGIONS as u32).collect();
        for at in (1..MAX_REGIONS).rev() {
            free.swap(at, (random.hash_one(at) % (at as u64 + 1)) as usize);
        }
        let first_generation = |index: u32| (random.hash_one((index, "generation")) as u32).max(1);
        Ok(Self {
            generations: segment.memory(),
            segment,
            entries: (0..MAX_REGIONS).map(|_| Entry::default()).collect(),
            revocations: AtomicU64::new(0),
            bookkeeping: Mutex::new(RegionBookkeeping {
                backing: (0..MAX_REGIONS).map(|_| None).collect(),
                granted: vec![GrantUse::default(); MAX_REGIONS],
                next_generation: (0..MAX_REGIONS as u32).map(first_generation).collect(),
                free,
            }),
        })
    }

    /// Adds a region and returns its key.
    pub(crate) fn insert(&self, backing: Backing, span: RegionSpan, pd: u32, access: Access) -> Result<u32> {
        let mut bookkeeping = self.bookkeeping.lock();
        let index = bookkeeping.free.pop().ok_or(Error::Exhausted {
            operation: "register memory",
            what: "memory regions",
            limit: MAX_REGIONS as u64,
            remedy: "use fewer, larger regions or deregister some",
        })?;
        let generation = bookkeeping.next_generation[index as usize];
        self.fill(&mut bookkeeping, index as usize, generation, (backing, span, pd, access));
        Ok(index << KEY_BITS | (generation & 0xFF))
    }

    /// Replaces a revoked region by another one with the same key. Peers that know the old region detect the change by
    /// the generation, of which a key contains only the low byte.
    pub(crate) fn renew(&self, key: u32, backing: Backing, span: RegionSpan, pd: u32, access: Access) {
        let mut bookkeeping = self.bookkeeping.lock();
        let next = bookkeeping.next_generation[index_of(key)];
        let generation = next.wrapping_add(key.wrapping_sub(next) & 0xFF);
        // 0 is not a valid generation; the next one with the same low byte is.
        let generation = if generation == 0 { 0x100 } else { generation };
        self.fill(&mut bookkeeping, index_of(key), generation, (backing, span, pd, access));
    }

    fn fill(
        &self,
        bookkeeping: &mut RegionBookkeeping,
        index: usize,
        generation: u32,
        (backing, span, pd, access): (Backing, RegionSpan, u32, Access),
    ) {
        bookkeeping.next_generation[index] = generation.wrapping_add(1).max(1);
        let entry = &self.entries[index];
        entry.addr.store(backing.addr(), Ordering::Relaxed);
        entry.remote_addr.store(span.remote_addr, Ordering::Relaxed);
        entry.len_bytes.store(span.len_bytes as u64, Ordering::Relaxed);
        entry.pd_access.store(u64::from(pd) << 32 | u64::from(access.bits()), Ordering::Relaxed);
        bookkeeping.backing[index] = Some(backing);
        bookkeeping.granted[index] = GrantUse::default();
        self.generations.store(index * 8, generation.into(), Ordering::Release);
    }

    /// Revokes a region and returns its grants; it cannot be granted any more. The caller issues the barrier and waits
    /// for hazards before it calls [`RegionTable::release`].
    pub(crate) fn revoke(&self, key: u32) -> GrantUse {
        // Grants are made under the same lock.
        let bookkeeping = self.bookkeeping.lock();
        self.generations.store(index_of(key) * 8, 0, Ordering::Release);
        self.revocations.fetch_add(1, Ordering::Release);
        bookkeeping.granted[index_of(key)]
    }

    /// Returns whether registered memory of the program overlaps `from..to`.
    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        let bookkeeping = self.bookkeeping.lock();
        bookkeeping.backing.iter().zip(&self.entries).any(|(backing, entry)| {
            let len_bytes = entry.len_bytes.load(Ordering::Relaxed);
            matches!(backing, Some(Backing::Private { addr, .. }) if *addr < to && from < addr + len_bytes)
        })
    }

    /// Removes the memory of a revoked region, and keeps its key reserved.
    pub(crate) fn drop_backing(&self, key: u32) {
        self.bookkeeping.lock().backing[index_of(key)] = None;
    }

    /// Frees the index of a revoked region.
    pub(crate) fn release(&self, key: u32) {
        let mut bookkeeping = self.bookkeeping.lock();
        bookkeeping.backing[index_of(key)] = None;
        bookkeeping.free.insert(0, key >> KEY_BITS);
    }

    /// Returns the number of regions revoked so far.
    #[inline]
    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    fn is_live(&self, key: u32) -> bool {
        if index_of(key) >= MAX_REGIONS {
            return false;
        }
        let generation = self.generations.load(index_of(key) * 8, Ordering::Acquire);
        generation != 0 && generation as u32 & 0xFF == key & 0xFF
    }

    /// Checks local elements. Empty elements need no key.
    #[inline]
    pub(crate) fn allows_all(&self, sges: &[Sge], pd: u32, need: Access) -> bool {
        sges.iter().all(|sge| sge.length == 0 || self.allows(sge.lkey, pd, sge.addr, sge.length, need))
    }

    /// Like [`RegionTable::allows_all`], for the first `len_bytes` of the elements; later elements are not checked.
    pub(crate) fn allows_first(&self, sges: &[Sge], len_bytes: u64, pd: u32, need: Access) -> bool {
        let mut left = len_bytes;
        sges.iter().all(|sge| {
            let length = left.min(sge.length.into()) as u32;
            left -= u64::from(length);
            length == 0 || self.allows(sge.lkey, pd, sge.addr, length, need)
        })
    }

    /// Checks a local element: key, domain, bounds and permission.
    #[inline]
    pub(crate) fn allows(&self, lkey: u32, pd: u32, addr: u64, len_bytes: u32, need: Access) -> bool {
        if !self.is_live(lkey) {
            return false;
        }
        let entry = &self.entries[index_of(lkey)];
        let pd_access = entry.pd_access.load(Ordering::Relaxed);
        let access = Access::from_bits_retain(pd_access as u32);
        let offset = addr.wrapping_sub(entry.addr.load(Ordering::Relaxed));
        let region_len = entry.len_bytes.load(Ordering::Relaxed);
        (pd_access >> 32) as u32 == pd
            && access.contains(need)
            && offset <= region_len
            && u64::from(len_bytes) <= region_len - offset
    }

    /// Checks memory specified by a peer: key, domain, bounds and permission. Returns its address in this process.
    pub(crate) fn locate(&self, target: &RemoteRange, pd: u32, need: Access) -> Option<u64> {
        let entry = self.entries.get(index_of(target.rkey))?;
        let offset = target.addr.wrapping_sub(entry.remote_addr.load(Ordering::Relaxed));
        let addr = entry.addr.load(Ordering::Relaxed).wrapping_add(offset);
        self.allows(target.rkey, pd, addr, target.len_bytes, need).then_some(addr)
    }

    /// Returns the values with which `allows` compares an element of `lkey`; `None` if the region is not registered or
    /// belongs to another domain.
    pub(crate) fn local(&self, lkey: u32, pd: u32) -> Option<LocalRegion> {
        let entry = self.is_live(lkey).then(|| &self.entries[index_of(lkey)])?;
        let pd_access = entry.pd_access.load(Ordering::Relaxed);
        let word = generation_word(&self.generations, lkey);
        ((pd_access >> 32) as u32 == pd).then(|| LocalRegion {
            addr: entry.addr.load(Ordering::Relaxed),
            len_bytes: entry.len_bytes.load(Ordering::Relaxed),
            access: Access::from_bits_retain(pd_access as u32),
            generation: word.load(Ordering::Acquire),
            word,
        })
    }

    /// Returns the grant of `key` for a peer that uses a queue pair of `pd`. `receive` requests access for writing
    /// messages to posted receives.
    pub(crate) fn grant(&self, key: u32, pd: u32, receive: bool) -> Option<Grant> {
        let mut bookkeeping = self.bookkeeping.lock();
        if !self.is_live(key) {
            return None;
        }
        let entry = &self.entries[index_of(key)];
        let pd_access = entry.pd_access.load(Ordering::Relaxed);
        let access = Access::from_bits_truncate(pd_access as u32);
        if (pd_access >> 32) as u32 != pd || !(receive || access.intersects(super::REMOTE_ACCESS)) {
            return None;
        }
        let backing = bookkeeping.backing[index_of(key)].clone()?;
        let granted = &mut bookkeeping.granted[index_of(key)];
        granted.receive |= receive;
        granted.remote |= !receive;
        let memory_addr = entry.addr.load(Ordering::Relaxed);
        Some(Grant {
            backing,
            addr: if receive { memory_addr } else { entry.remote_addr.load(Ordering::Relaxed) },
            memory_addr,
            len_bytes: entry.len_bytes.load(Ordering::Relaxed),
            generation: self.generations.load(index_of(key) * 8, Ordering::Relaxed) as u32,
            access,
        })
    }
}

/// Returns whether `generation` of the region `key` is still registered, according to a peer's table.
#[inline]
pub(crate) fn is_current(generations: &SharedMem, key: u32, generation: u32) -> bool {
    generations.load(index_of(key) * 8, Ordering::Acquire) == u64::from(generation)
}

/// Returns the word that contains the generation of the region `key`.
pub(crate) fn generation_word(generations: &SharedMem, key: u32) -> SharedWord {
    generations.word_at(index_of(key) * 8)
}

/// Returns whether a key has a valid form.
pub(crate) const fn is_plausible(key: u32) -> bool {
    index_of(key) < MAX_REGIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(remote_addr: u64, len_bytes: usize) -> RegionSpan {
        RegionSpan { len_bytes, remote_addr }
    }

    #[test]
    fn locates_memory_by_the_addresses_of_peers() {
        let table = RegionTable::new().unwrap();
        let memory = Backing::Private { addr: 0x1000, window: None };
        let key = table.insert(memory, span(0, 64), 7, Access::REMOTE_READ).unwrap();
        let found = |addr, len_bytes| {
            table.locate(&RemoteRange { rkey: key, addr, len_bytes }, 7, Access::REMOTE_READ)
        };
        assert_eq!((found(0, 64), found(63, 1), found(64, 0)), (Some(0x1000), Some(0x103F), Some(0x1040)));
        assert_eq!(
            (found(1, 64), found(64, 1), found(u64::MAX, 1), found(0x1000, 1)),
            (None, None, None, None)
        );
        let beyond = RemoteRange { rkey: u32::MAX, addr: 0, len_bytes: 1 };
        assert!(table.locate(&beyond, 7, Access::empty()).is_none(), "no such key");
        let remote = table.grant(key, 7, false).unwrap();
        assert_eq!((remote.addr, remote.memory_addr), (0, 0x1000));
        assert_eq!(table.grant(key, 7, true).unwrap().addr, 0x1000, "receives name memory");
    }

    #[test]
    fn local_checks_and_stale_keys() {
        let table = RegionTable::new().unwrap();
        let segment = Arc::new(Segment::create("test", 4096).unwrap());
        let base = segment.base() as u64;
        let key =
            table.insert(Backing::Pool(segment.clone()), span(base, 4096), 7, Access::LOCAL_WRITE).unwrap();
        let none = Access::empty();
        assert!(table.allows(key, 7, base, 4096, Access::LOCAL_WRITE));
        assert!(table.allows(key, 7, base + 4096, 0, none));
        assert!(!table.allows(key, 7, base + 1, 4096, none), "past the end");
        assert!(!table.allows(key, 7, base.wrapping_sub(1), 1, none), "before the start");
        assert!(!table.allows(key, 7, u64::MAX, u32::MAX, none), "overflow");
        assert!(!table.allows(key, 8, base, 1, none), "another domain");
        assert!(!table.allows(key, 7, base, 1, Access::REMOTE_READ), "not permitted");
        assert!(
            !table.allows(key ^ 1, 7, base, 1, none) && !table.allows(u32::MAX, 7, base, 1, none),
            "wrong keys"
        );
        assert!(table.grant(key, 7, true).is_some() && table.grant(key, 8, true).is_none());
        assert!(table.grant(key, 7, false).is_none(), "it has no remote access");
        let granted = table.revoke(key);
        assert!(granted.receive && !granted.remote);
        assert!(!table.allows(key, 7, base, 1, none) && table.grant(key, 7, true).is_none());
        table.release(key);
        assert_ne!(table.insert(Backing::Pool(segment), span(base, 4096), 7, none).unwrap(), key);
    }

    #[test]
    fn keys_of_one_process_say_nothing_of_anothers() {
        let keys = || {
            let table = RegionTable::new().unwrap();
            let memory = || Backing::Private { addr: 0x1000, window: None };
            [(); 4].map(|()| table.insert(memory(), span(0x1000, 16), 7, Access::LOCAL_WRITE).unwrap())
        };
        let (mine, other) = (keys(), keys());
        assert_ne!(mine, other);
        let places = mine.map(index_of);
        assert!(places.windows(2).any(|two| two[1].abs_diff(two[0]) > 1), "{places:?}");
    }

    #[test]
    fn renews_a_region_with_its_key_and_a_new_generation() {
        let table = RegionTable::new().unwrap();
        let memory = |addr| Backing::Private { addr, window: None };
        let key = table.insert(memory(0x1000), span(0x1000, 16), 7, Access::LOCAL_WRITE).unwrap();
        let mut known = vec![table.grant(key, 7, true).unwrap().generation];
        for round in 0..3 {
            table.revoke(key);
            table.drop_backing(key);
            assert!(!table.allows(key, 7, 0x1000, 1, Access::empty()));
            table.renew(key, memory(0x2000), span(0x2000, 32), 8, Access::empty());
            assert!(table.allows(key, 8, 0x2000, 32, Access::empty()), "{round}");
            assert!(!table.allows(key, 7, 0x2000, 1, Access::empty()), "the domain of before");
            let generation = table.grant(key, 8, true).unwrap().generation;
            assert!(!known.contains(&generation) && generation & 0xFF == key & 0xFF);
            known.push(generation);
        }
        // The largest value before it wraps around.
        table.revoke(key);
        table.bookkeeping.lock().next_generation[index_of(key)] = u32::MAX - 2;
        table.renew(key, memory(0x1000), span(0x1000, 16), 7, Access::empty());
        assert!(table.grant(key, 7, true).unwrap().generation & 0xFF == key & 0xFF);
        assert!(table.allows(key, 7, 0x1000, 16, Access::empty()));
    }
}

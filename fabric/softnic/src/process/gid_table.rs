//! GID table of the port: entries for this host, followed by the addresses by which other hosts reach it. The addresses
//! may change.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use farcall_shm::Mutex;
use farcall_verbs::Gid;

use super::addresses::{ADDRESSES_MAX, DeviceAddress, TransportPolicy, device_addresses};
use super::local_gids::NETDEV;

/// The GID table. An entry keeps its index, because programs refer to it by index. The entry of an address that has
/// gone is empty until this address or another one is added.
pub(crate) struct GidTable {
    policy: TransportPolicy,
    local_gids: Vec<Gid>,
    /// GIDs of the address entries. Read for each datagram, so without a lock.
    gids: [AtomicGid; ADDRESSES_MAX],
    slots: Mutex<Vec<Slot>>,
}

/// An entry in use: its GID and its network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) gid: Gid,
    pub(crate) netdev: String,
}

/// Entry of an address.
struct Slot {
    address: DeviceAddress,
    is_stale: bool,
}

/// A GID that one thread changes rarely and others read.
#[derive(Default)]
struct AtomicGid {
    /// Odd during a change.
    version: AtomicU64,
    halves: [AtomicU64; 2],
}

impl AtomicGid {
    /// Returns the GID; zeros during a change.
    fn get(&self) -> Gid {
        let version = self.version.load(Acquire);
        let [high, low] = self.halves.each_ref().map(|half| half.load(Relaxed));
        fence(Acquire);
        if version % 2 == 1 || self.version.load(Relaxed) != version {
            return Gid::default();
        }
        Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    /// Sets the GID. Only one thread may call it at a time.
    fn set(&self, gid: Gid) {
        let number = u128::from_be_bytes(gid.0);
        self.version.fetch_add(1, Relaxed);
        fence(Release);
        self.halves[0].store((number >> 64) as u64, Relaxed);
        self.halves[1].store(number as u64, Relaxed);
        self.version.fetch_add(1, Release);
    }
}

impl GidTable {
    /// Creates the table with the entries for this host, and its current addresses.
    pub(crate) fn new(policy: TransportPolicy, gids: &[Gid]) -> Self {
        let local_gids = if policy == TransportPolicy::RoCE { Vec::new() } else { gids.to_vec() };
        let table = Self { policy, local_gids, gids: Default::default(), slots: Mutex::default() };
        table.refresh();
        table
    }

    /// Updates the table from the addresses that the system reports.
    pub(crate) fn refresh(&self) {
        if self.policy == TransportPolicy::SharedMemory {
            return;
        }
        let mut slots = self.slots.lock();
        let known: Vec<Gid> = slots.iter().map(|slot| slot.address.gid).collect();
        merge_addresses(&mut slots, device_addresses(self.policy, &known));
        for (published, slot) in self.gids.iter().zip(&*slots) {
            let gid = if slot.is_stale { Gid::default() } else { slot.address.gid };
            if published.get() != gid {
                published.set(gid);
            }
        }
    }

    /// Returns the number of entries, including empty ones.
    pub(crate) fn len(&self) -> usize {
        self.local_gids.len() + self.slots.lock().len()
    }

    /// Returns the entry at an index; a GID of zeros if it is empty.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Gid {
        match self.local_gids.get(index) {
            Some(gid) => *gid,
            None => self.gids.get(index - self.local_gids.len()).map(AtomicGid::get).unwrap_or_default(),
        }
    }

    /// Returns the index of a GID.
    pub(crate) fn position(&self, gid: Gid) -> Option<usize> {
        (0..self.local_gids.len() + ADDRESSES_MAX).find(|index| self.get(*index) == gid)
    }

    /// Returns whether the GID is an address by which other hosts reach this one.
    pub(crate) fn has_address(&self, gid: Gid) -> bool {
        gid != Gid::default() && self.gids.iter().any(|published| published.get() == gid)
    }

    /// Returns the entries in use.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entry = |(index, gid, netdev): (usize, Gid, &str)| Entry {
            index: index as u32,
            gid,
            netdev: netdev.to_owned(),
        };
        let local_gids = self.local_gids.iter().enumerate().map(|(index, gid)| (index, *gid, NETDEV));
        let slots = self.slots.lock();
        let there = slots.iter().enumerate().filter(|(_, slot)| !slot.is_stale);
        let there = there.map(|(at, Slot { address, .. })| {
            (self.local_gids.len() + at, address.gid, address.netdev.as_str())
        });
        local_gids.chain(there).map(entry).collect()
    }
}

/// Assigns the current addresses, at most [`ADDRESSES_MAX`], to their entries.
fn merge_addresses(slots: &mut Vec<Slot>, now: Vec<DeviceAddress>) {
    for slot in &mut *slots {
        slot.is_stale = !now.iter().any(|address| address.gid == slot.address.gid);
    }
    for address in now {
        let slot = Slot { address, is_stale: false };
        let own = slots.iter().position(|other| other.address.gid == slot.address.gid);
        match own.or_else(|| slots.iter().position(|other| other.is_stale)) {
            Some(at) => slots[at] = slot,
            None => slots.push(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn address(last: u8) -> DeviceAddress {
        DeviceAddress { gid: Gid::from_ipv4([10, 0, 0, last].into()), netdev: "cable".into() }
    }

    #[test]
    fn restores_an_address_to_its_slot_after_its_return() {
        let mut slots = Vec::new();
        let mut settled = |now: &[u8]| {
            merge_addresses(&mut slots, now.iter().map(|last| address(*last)).collect());
            let last = |slot: &Slot| if slot.is_stale { 0 } else { slot.address.gid.0[15] };
            slots.iter().map(last).collect::<Vec<_>>()
        };
        assert_eq!(settled(&[1, 2]), [1, 2]);
        assert_eq!(settled(&[2]), [0, 2]);
        assert_eq!(settled(&[1, 2]), [1, 2], "back");
        assert_eq!(settled(&[3, 2]), [3, 2], "another address in the slot of the removed one");
        assert_eq!(settled(&[1, 2, 3]), [3, 2, 1]);
        assert_eq!(settled(&[]), [0, 0, 0]);
        assert_eq!(settled(&[2]), [0, 2, 0]);
    }

    #[test]
    fn lists_the_addresses_of_this_host() {
        let table = GidTable::new(TransportPolicy::RoCE, &[address(1).gid]);
        let entries = table.entries();
        assert!(!entries.is_empty() && table.len() == entries.len());
        for Entry { index, gid, .. } in entries {
            assert_eq!((table.get(index as usize), table.position(gid)), (gid, Some(index as usize)));
            assert!(table.has_address(gid));
        }
        assert_eq!(table.get(ADDRESSES_MAX), Gid::default(), "beyond the table");
        assert!(!table.has_address(Gid::default()) && !table.has_address(address(1).gid));
        let host = GidTable::new(TransportPolicy::SharedMemory, &[address(1).gid]);
        assert_eq!((host.len(), host.get(0)), (1, address(1).gid));
    }

    #[test]
    fn reads_an_old_or_new_gid_or_none_during_a_change() {
        let (published, is_done) = (AtomicGid::default(), AtomicBool::new(false));
        let gids = [Gid([1; 16]), Gid([2; 16])];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..10_000).for_each(|round| published.set(gids[round % 2]));
                is_done.store(true, Release);
            });
            while !is_done.load(Acquire) {
                let gid = published.get();
                assert!(gid == Gid::default() || gids.contains(&gid), "{gid}");
            }
        });
        assert_eq!(published.get(), gids[1]);
    }
}

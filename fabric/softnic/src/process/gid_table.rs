//! GID table of the port: entries for this host, followed by the addresses by which other hosts reach it. The addresses
//! may change.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use farcall_shm::Mutex;
use farcall_verbs::Gid;

use super::addresses::{ADDRESSES_MAX, DeviceAddress, WayChoice, device_addresses};
use super::local_gids::NETDEV;

/// The GID table. An entry keeps its index, because programs refer to it by index. The entry of an address that has
/// gone is empty until this address or another one is added.
pub(crate) struct GidTable {
    way: WayChoice,
    here: Vec<Gid>,
    /// GIDs of the address entries. Read for each datagram, so without a lock.
    shown: [Shown; ADDRESSES_MAX],
    places: Mutex<Vec<Place>>,
}

/// An entry in use: its GID and its network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) gid: Gid,
    pub(crate) netdev: String,
}

/// Entry of an address.
struct Place {
    address: DeviceAddress,
    has_gone: bool,
}

/// A GID that one thread changes rarely and others read.
#[derive(Default)]
struct Shown {
    /// Odd during a change.
    version: AtomicU64,
    halves: [AtomicU64; 2],
}

impl Shown {
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
    pub(crate) fn new(way: WayChoice, gids: &[Gid]) -> Self {
        let here = if way == WayChoice::Net { Vec::new() } else { gids.to_vec() };
        let table = Self { way, here, shown: Default::default(), places: Mutex::default() };
        table.refresh();
        table
    }

    /// Updates the table from the addresses that the system reports.
    pub(crate) fn refresh(&self) {
        if self.way == WayChoice::Host {
            return;
        }
        let mut places = self.places.lock();
        let known: Vec<Gid> = places.iter().map(|place| place.address.gid).collect();
        settle(&mut places, device_addresses(self.way, &known));
        for (shown, place) in self.shown.iter().zip(&*places) {
            let gid = if place.has_gone { Gid::default() } else { place.address.gid };
            if shown.get() != gid {
                shown.set(gid);
            }
        }
    }

    /// Returns the number of entries, including empty ones.
    pub(crate) fn len(&self) -> usize {
        self.here.len() + self.places.lock().len()
    }

    /// Returns the entry at an index; a GID of zeros if it is empty.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Gid {
        match self.here.get(index) {
            Some(gid) => *gid,
            None => self.shown.get(index - self.here.len()).map(Shown::get).unwrap_or_default(),
        }
    }

    /// Returns the index of a GID.
    pub(crate) fn position(&self, gid: Gid) -> Option<usize> {
        (0..self.here.len() + ADDRESSES_MAX).find(|index| self.get(*index) == gid)
    }

    /// Returns whether the GID is an address by which other hosts reach this one.
    pub(crate) fn has_address(&self, gid: Gid) -> bool {
        gid != Gid::default() && self.shown.iter().any(|shown| shown.get() == gid)
    }

    /// Returns the entries in use.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entry = |(index, gid, netdev): (usize, Gid, &str)| Entry {
            index: index as u32,
            gid,
            netdev: netdev.to_owned(),
        };
        let here = self.here.iter().enumerate().map(|(index, gid)| (index, *gid, NETDEV));
        let places = self.places.lock();
        let there = places.iter().enumerate().filter(|(_, place)| !place.has_gone);
        let there = there
            .map(|(at, Place { address, .. })| (self.here.len() + at, address.gid, address.netdev.as_str()));
        here.chain(there).map(entry).collect()
    }
}

/// Assigns the current addresses, at most [`ADDRESSES_MAX`], to their entries.
fn settle(places: &mut Vec<Place>, now: Vec<DeviceAddress>) {
    for place in &mut *places {
        place.has_gone = !now.iter().any(|address| address.gid == place.address.gid);
    }
    for address in now {
        let place = Place { address, has_gone: false };
        let own = places.iter().position(|other| other.address.gid == place.address.gid);
        match own.or_else(|| places.iter().position(|other| other.has_gone)) {
            Some(at) => places[at] = place,
            None => places.push(place),
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
    fn an_address_keeps_its_place_and_finds_it_again() {
        let mut places = Vec::new();
        let mut settled = |now: &[u8]| {
            settle(&mut places, now.iter().map(|last| address(*last)).collect());
            let last = |place: &Place| if place.has_gone { 0 } else { place.address.gid.0[15] };
            places.iter().map(last).collect::<Vec<_>>()
        };
        assert_eq!(settled(&[1, 2]), [1, 2]);
        assert_eq!(settled(&[2]), [0, 2]);
        assert_eq!(settled(&[1, 2]), [1, 2], "back");
        assert_eq!(settled(&[3, 2]), [3, 2], "another in the place of the one that has gone");
        assert_eq!(settled(&[1, 2, 3]), [3, 2, 1]);
        assert_eq!(settled(&[]), [0, 0, 0]);
        assert_eq!(settled(&[2]), [0, 2, 0]);
    }

    #[test]
    fn a_table_shows_the_addresses_of_this_host() {
        let table = GidTable::new(WayChoice::Net, &[address(1).gid]);
        let entries = table.entries();
        assert!(!entries.is_empty() && table.len() == entries.len());
        for Entry { index, gid, .. } in entries {
            assert_eq!((table.get(index as usize), table.position(gid)), (gid, Some(index as usize)));
            assert!(table.has_address(gid));
        }
        assert_eq!(table.get(ADDRESSES_MAX), Gid::default(), "beyond the table");
        assert!(!table.has_address(Gid::default()) && !table.has_address(address(1).gid));
        let host = GidTable::new(WayChoice::Host, &[address(1).gid]);
        assert_eq!((host.len(), host.get(0)), (1, address(1).gid));
    }

    #[test]
    fn reads_an_old_or_new_gid_or_none_during_a_change() {
        let (shown, is_over) = (Shown::default(), AtomicBool::new(false));
        let gids = [Gid([1; 16]), Gid([2; 16])];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..10_000).for_each(|round| shown.set(gids[round % 2]));
                is_over.store(true, Release);
            });
            while !is_over.load(Acquire) {
                let gid = shown.get();
                assert!(gid == Gid::default() || gids.contains(&gid), "{gid}");
            }
        });
        assert_eq!(shown.get(), gids[1]);
    }
}

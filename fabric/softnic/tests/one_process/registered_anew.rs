//! Regions that are re-registered with the same key while receives name them.

use std::sync::atomic::Ordering;

use crate::support::memory::Map;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{Access, MrMemory, ProtectionDomain, RawMr, SendWr, Sge, WcStatus};
use rustix::mm::MapFlags;

const LEN: usize = 64 << 10;

/// Change of a region.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    Elsewhere,
    Permissions,
    Domain,
}

impl Change {
    fn make(self, end: &End, aside: &dyn ProtectionDomain, mr: &dyn RawMr, other: &Map) -> Box<dyn RawMr> {
        // SAFETY: the test keeps its memory until after its regions.
        unsafe {
            match self {
                Self::Nothing => end.pd.rereg_mr(mr, None, None),
                Self::Elsewhere => end.pd.rereg_mr(mr, Some(MrMemory::new(other.0, LEN)), None),
                Self::Permissions => end.pd.rereg_mr(mr, None, Some(Access::empty())),
                Self::Domain => aside.rereg_mr(mr, None, None),
            }
        }
        .unwrap()
    }
}

/// A message of `len` bytes arrives for a receive whose region has changed since it was posted.
fn message_after(change: Change, begins_at: usize, len: usize, is_known: bool) {
    let what = format!("{change:?} from {begins_at}, {len} bytes, known: {is_known}");
    let (mut a, mut b) = pair();
    let aside = b.context.alloc_pd().unwrap();
    let [map, other] = [(); 2].map(|()| Map::anonymous(2 * LEN, MapFlags::PRIVATE).unwrap());
    // SAFETY: the offset is inside the mapping.
    let base = unsafe { map.0.add(begins_at) };
    // SAFETY: the mapping outlives its region.
    let before = unsafe { b.pd.reg_mr(base, LEN, ALL) }.unwrap();
    let key = before.lkey();
    let place = [Sge { addr: base as u64, length: 16 << 10, lkey: key }];
    let sges = [a.sge(0, len)];
    if is_known {
        // The sender knows the previous region.
        b.recv(0, &place);
        a.send(&[SendWr::send(0, &sges).with_flags(SIGNALED)]);
        assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS), "{what}");
    }
    b.recv(1, &place);
    let now = change.make(&b, &*aside, &*before, &other);
    drop(before);
    assert_eq!((now.lkey(), now.rkey()), (key, key), "{what}");
    let bytes = bytes(len, 5);
    a.put(0, &bytes);
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    let (sent, received) = match change {
        Change::Nothing => (WcStatus::SUCCESS, WcStatus::SUCCESS),
        _ => (WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR),
    };
    assert_eq!((a.wait().status, b.wait().status), (sent, received), "{what}");
    let mut found = vec![0; len];
    // SAFETY: the memory belongs to the test, and no peer can access it any more.
    unsafe { base.copy_to_nonoverlapping(found.as_mut_ptr(), len) };
    assert_eq!(found == bytes, received == WcStatus::SUCCESS, "{what}");
    drop(now);
}

fn messages_after_changes() {
    for change in [Change::Nothing, Change::Elsewhere, Change::Permissions, Change::Domain] {
        for (begins_at, len) in [(0, 64), (0, 16 << 10), (1000, 16 << 10)] {
            for is_known in [false, true] {
                message_after(change, begins_at, len, is_known);
            }
        }
    }
}

/// A peer that has written to a region repeatedly writes to its current memory, and no longer to the previous one.
fn writes_after_changes(begins_at: usize) {
    let (mut a, b) = pair();
    let [map, other] = [(); 2].map(|()| Map::anonymous(2 * LEN, MapFlags::PRIVATE).unwrap());
    // SAFETY: the offset is inside the mappings.
    let places = unsafe { [map.0.add(begins_at), other.0.add(begins_at)] };
    // SAFETY: the mappings outlive their region.
    let mut mr = unsafe { b.pd.reg_mr(places[0], LEN, ALL) }.unwrap();
    let (key, sges) = (mr.rkey(), [a.sge(0, 8)]);
    // SAFETY: the memory belongs to the test, and no request is outstanding.
    let word = |place: *mut u8| unsafe { place.cast::<u64>().read_unaligned() };
    let mut write = |value: u64, to: *mut u8| {
        a.put(0, &value.to_ne_bytes());
        a.send(&[SendWr::write(value, &sges, to as u64, key).with_flags(SIGNALED)]);
        a.wait().status
    };
    for round in 0..6 {
        let (now, before) = (places[round % 2], places[(round + 1) % 2]);
        if round > 0 {
            // SAFETY: the mappings outlive their region.
            let anew = unsafe { b.pd.rereg_mr(&*mr, Some(MrMemory::new(now, LEN)), None) }.unwrap();
            mr = anew;
        }
        let was = word(before);
        for n in 0..3 {
            let value = 10 * round as u64 + n + 1;
            assert_eq!(
                (write(value, now), word(now), word(before)),
                (WcStatus::SUCCESS, value, was),
                "{round}"
            );
        }
    }
    let (last, value) = (places[0], word(places[0]));
    assert_eq!((write(99, last), word(last)), (WcStatus::REM_ACCESS_ERR, value), "it is elsewhere");
    drop(mr);
}

/// A process whose own region was moved does not send from its previous memory.
fn own_memory_after_a_change() {
    let (mut a, b) = pair();
    let [map, other] = [(); 2].map(|()| Map::anonymous(LEN, MapFlags::PRIVATE).unwrap());
    // SAFETY: the mappings outlive their region.
    let mr = unsafe { a.pd.reg_mr(map.0, LEN, ALL) }.unwrap();
    let from = |place: &Map| [Sge { addr: place.0 as u64, length: 8, lkey: mr.lkey() }];
    let write = |a: &mut End, sges: &[Sge]| {
        a.send(&[SendWr::write(1, sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED)]);
        a.wait().status
    };
    for _ in 0..3 {
        assert_eq!(write(&mut a, &from(&map)), WcStatus::SUCCESS);
    }
    // SAFETY: the mappings outlive their region.
    let _now = unsafe { a.pd.rereg_mr(&*mr, Some(MrMemory::new(other.0, LEN)), None) }.unwrap();
    for _ in 0..3 {
        assert_eq!(write(&mut a, &from(&other)), WcStatus::SUCCESS);
    }
    assert_eq!(write(&mut a, &from(&map)), WcStatus::LOC_PROT_ERR);
}

fn accesses_after_changes() {
    for begins_at in [0, 1000] {
        writes_after_changes(begins_at);
    }
    own_memory_after_a_change();
}

#[test]
fn reaches_a_region_only_at_its_current_address() {
    accesses_after_changes();
}

#[test]
fn child_entry() {
    if role().is_none() {
        return;
    }
    MOVED_BYTES_MAX.store(64 << 20, Ordering::Relaxed);
    // Memory moves only in a process with a single thread.
    let code = in_child(|| {
        messages_after_changes();
        accesses_after_changes();
        let end = End::default();
        let map = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
        // SAFETY: the mapping outlives its region.
        let _mr = unsafe { end.pd.reg_mr(map.0, LEN, ALL) }.unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("memfd:farcall-registered"), "nothing is moved: {maps}");
    });
    std::process::exit(code);
}

#[test]
fn fails_a_message_into_a_region_reregistered_under_its_key() {
    messages_after_changes();
}

#[test]
fn fails_a_message_into_a_moved_region_reregistered_by_key() {
    assert_eq!(start("moved", &[]).wait_for_end(), ProcessState::Exited(0));
}

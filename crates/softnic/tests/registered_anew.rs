//! Regions that are registered anew, under the same key, while receives name them.

mod support;

use std::sync::atomic::Ordering;

use farcall_verbs::{Access, ProtectionDomain, RawMr, SendWr, Sge, WcStatus};
use rustix::mm::MapFlags;
use support::memory::Map;
use support::process::*;
use support::*;

const LEN: usize = 64 << 10;

/// What becomes of a region.
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
                Self::Elsewhere => end.pd.rereg_mr(mr, Some((other.0, LEN)), None),
                Self::Permissions => end.pd.rereg_mr(mr, None, Some(Access::empty())),
                Self::Domain => aside.rereg_mr(mr, None, None),
            }
        }
        .unwrap()
    }
}

/// A message of `len` bytes meets a receive whose region has changed since it was posted.
fn message_after(change: Change, begins_at: usize, len: usize, is_known: bool) {
    let what = format!("{change:?} from {begins_at}, {len} bytes, known: {is_known}");
    let (mut a, mut b) = pair();
    let aside = b.context.alloc_pd().unwrap();
    let [map, other] = [(); 2].map(|()| Map::anonymous(2 * LEN, MapFlags::PRIVATE).unwrap());
    // SAFETY: inside the mapping.
    let base = unsafe { map.0.add(begins_at) };
    // SAFETY: the mapping outlives its region.
    let before = unsafe { b.pd.reg_mr(base, LEN, ALL) }.unwrap();
    let key = before.lkey();
    let place = [Sge { addr: base as u64, length: 16 << 10, lkey: key }];
    let sges = [a.sge(0, len)];
    if is_known {
        // The sender knows the region of before.
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
        // A small message waits for no answer.
        _ if len <= 1024 => (WcStatus::SUCCESS, WcStatus::LOC_PROT_ERR),
        _ => (WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR),
    };
    assert_eq!((a.wait().status, b.wait().status), (sent, received), "{what}");
    let mut found = vec![0; len];
    // SAFETY: the test's own memory, which nobody reaches any more.
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

#[test]
fn child_entry() {
    if role().is_none() {
        return;
    }
    MOVED_BYTES_MAX.store(64 << 20, Ordering::Relaxed);
    // Memory moves only in a process of one thread.
    let code = in_child(|| {
        messages_after_changes();
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
fn a_message_into_a_region_that_has_changed_under_its_key_fails_and_changes_nothing() {
    messages_after_changes();
}

#[test]
fn a_message_into_a_moved_region_that_has_changed_under_its_key_fails_and_changes_nothing() {
    assert_eq!(start("moved", &[]).wait_for_end(), Fate::Exited(0));
}

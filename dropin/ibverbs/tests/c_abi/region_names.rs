//! Regions that requests address by other addresses than those of their memory.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use farcall_layout::{Mr, Qp, QpEx};
use farcall_verbs::{RecvWr, SendFlags, SendWr, Sge, Wc, WcStatus};
use libc::EINVAL;

use crate::library::{clear_errno, errno, inline};
use crate::refusals::Opened;
use crate::threads::connect;

const LEN: usize = 8192;
const LOCAL_AND_REMOTE: u32 = 0xf;
const ZERO_BASED: u32 = 1 << 5;
/// `IBV_REREG_MR_CHANGE_TRANSLATION` and `..._ACCESS`.
const TRANSLATION: c_int = 1;
const ACCESS: c_int = 4;

/// How a program addresses a region's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Own,
    Zero,
    Iova(u64),
}

impl Name {
    fn of(self, addr: u64) -> u64 {
        match self {
            Self::Own => addr,
            Self::Zero => 0,
            // The kernel requires the same offset within a page.
            Self::Iova(page) => page * 4096 + addr % 4096,
        }
    }

    /// # Safety
    /// The memory must outlive the region.
    unsafe fn register(self, opened: &Opened, memory: &mut [u8]) -> *mut Mr {
        let (addr, library) = (memory.as_mut_ptr(), opened.library);
        let name = self.of(addr as u64);
        // SAFETY: a live domain; contract of this function: the memory outlives the region.
        let made = unsafe {
            match self {
                Self::Iova(_) => {
                    let access = LOCAL_AND_REMOTE as c_int;
                    (library.ibv_reg_mr_iova)(opened.pd, addr.cast(), memory.len(), name, access)
                }
                Self::Zero => {
                    let access = (LOCAL_AND_REMOTE | ZERO_BASED) as c_int;
                    (library.reg_mr)(opened.pd, addr.cast(), memory.len(), access)
                }
                Self::Own => {
                    (library.reg_mr)(opened.pd, addr.cast(), memory.len(), LOCAL_AND_REMOTE as c_int)
                }
            }
        };
        assert!(!made.is_null(), "{self:?}: errno {}", errno());
        made
    }
}

/// Waits for the completions of `count` requests, in any order.
fn wait(opened: &Opened, count: usize) -> Vec<Wc> {
    let (mut found, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while found.len() < count {
        assert!(Instant::now() < deadline, "{found:?} of {count}");
        let mut wcs = [Wc::default(); 4];
        // SAFETY: a live queue.
        let taken = unsafe { inline::poll_cq(opened.cq, &mut wcs) };
        found.extend_from_slice(&wcs[..taken as usize]);
    }
    found.sort_by_key(|wc| wc.wr_id);
    found
}

/// Extends the lifetime of a list for the C type.
fn list(sge: &Sge) -> &'static [Sge] {
    // SAFETY: tests keep the element until the post has returned.
    unsafe { std::slice::from_raw_parts(sge, 1) }
}

fn post(qp: *mut Qp, wr: &mut SendWr<'static>) {
    let mut bad = ptr::null_mut();
    // SAFETY: a live pair, a complete chain, memory that outlives the requests.
    assert_eq!(unsafe { inline::post_send(qp, wr, &raw mut bad) }, 0);
}

/// Sends and writes from `from` to `to`, each addressed by its name, by structures and by builder calls.
fn messages(opened: &Opened, [a, b]: [*mut Qp; 2], [from, to]: [Name; 2]) {
    let (mut source, mut target) = (vec![0_u8; LEN], vec![0_u8; LEN]);
    let what = format!("{from:?} to {to:?}");
    let addrs = [source.as_ptr() as u64, target.as_ptr() as u64];
    // SAFETY: the memory outlives its regions.
    let (local, remote) = unsafe { (from.register(opened, &mut source), to.register(opened, &mut target)) };
    // SAFETY: live regions.
    let (local, remote) = unsafe { (&*local, &*remote) };
    assert_eq!((local.addr as u64, remote.addr as u64), (addrs[0], addrs[1]), "{what}");
    let (here, there) = (from.of(addrs[0]), to.of(addrs[1]));
    source[..300].copy_from_slice(&(0..300).map(|i| i as u8).collect::<Vec<_>>());
    let sge = |at: u64, length, lkey| Sge { addr: at, length, lkey };
    // A chain of two receives, then a chain of two sends.
    let into = [sge(there + 100, 100, remote.lkey), sge(there + 300, 100, remote.lkey)];
    let (mut first, last) = (RecvWr::new(1, list(&into[0])), RecvWr::new(2, list(&into[1])));
    first.next = &raw const last;
    let mut bad = ptr::null_mut();
    // SAFETY: a live pair, a complete chain, memory that outlives the requests.
    assert_eq!(unsafe { inline::post_recv(b, &raw mut first, &raw mut bad) }, 0, "{what}");
    let out = [sge(here + 7, 100, local.lkey), sge(here + 107, 100, local.lkey)];
    let last = SendWr::send(4, list(&out[1])).with_flags(SendFlags::SIGNALED);
    let mut first = SendWr::send(3, list(&out[0])).with_flags(SendFlags::SIGNALED);
    first.next = &raw const last;
    post(a, &mut first);
    let done = wait(opened, 4);
    assert!(done.iter().all(|wc| wc.status.is_success()), "{what}: {done:?}");
    assert_eq!((&target[100..200], &target[300..400]), (&source[7..107], &source[107..207]), "{what}");
    // WRITE, then READ of the written bytes, to another offset.
    post(a, &mut SendWr::write(5, list(&out[0]), there + 1000, remote.rkey).with_flags(SendFlags::SIGNALED));
    let back = sge(here + 2000, 100, local.lkey);
    post(a, &mut SendWr::read(6, list(&back), there + 1000, remote.rkey).with_flags(SendFlags::SIGNALED));
    assert!(wait(opened, 2).iter().all(|wc| wc.status.is_success()), "{what}");
    assert_eq!((&target[1000..1100], &source[2000..2100]), (&source[7..107], &source[7..107]), "{what}");
    // Inline data is addressed by its own address, whatever the key in its element.
    let mut small = *b"inline";
    let inline_sge = sge(small.as_mut_ptr() as u64, 6, local.lkey);
    let wr = SendWr::write(7, list(&inline_sge), there, remote.rkey);
    post(a, &mut wr.with_flags(SendFlags::SIGNALED | SendFlags::INLINE));
    assert!(wait(opened, 1)[0].status.is_success(), "{what}");
    assert_eq!(&target[..6], b"inline", "{what}");
    // By builder calls.
    let extended: *mut QpEx = a.cast();
    // SAFETY: a live extended pair.
    unsafe {
        ((*extended).wr_id, (*extended).wr_flags) = (8, SendFlags::SIGNALED.bits());
        ((*extended).wr_start)(extended);
        ((*extended).wr_rdma_write)(extended, remote.rkey, there + 4000);
        ((*extended).wr_set_sge)(extended, local.lkey, here + 100, 50);
        assert_eq!(((*extended).wr_complete)(extended), 0, "{what}");
    }
    assert!(wait(opened, 1)[0].status.is_success(), "{what}");
    assert_eq!(target[4000..4050], source[100..150], "{what}");
    // SAFETY: live regions, which nothing uses.
    unsafe {
        assert_eq!((opened.library.dereg_mr)(ptr::from_ref(local).cast_mut()), 0);
        assert_eq!((opened.library.dereg_mr)(ptr::from_ref(remote).cast_mut()), 0);
    }
}

/// Two connected pairs of a device.
fn pairs(opened: &Opened) -> [*mut Qp; 2] {
    let pairs =
        [(); 2].map(|()| opened.pair(|attr| (attr.cap.max_recv_sge, attr.cap.max_inline_data) = (1, 16)));
    assert!(pairs.iter().all(|pair| !pair.is_null()));
    connect(opened.library, opened.context, pairs[0], pairs[1]);
    connect(opened.library, opened.context, pairs[1], pairs[0]);
    pairs
}

#[test]
fn names_regions_from_zero_and_from_other_addresses() {
    let opened = Opened::new();
    let pairs = pairs(&opened);
    let names = [Name::Own, Name::Zero, Name::Iova(0x7_0000)];
    for from in names {
        for to in names {
            messages(&opened, pairs, [from, to]);
        }
    }
    let mut memory = vec![0_u8; LEN];
    clear_errno();
    // SAFETY: a live domain, memory that outlives the region.
    let made = unsafe {
        let iova = memory.as_ptr() as u64 + 1;
        (opened.library.ibv_reg_mr_iova2)(opened.pd, memory.as_mut_ptr().cast(), LEN, iova, 1)
    };
    assert!(made.is_null() && errno() == EINVAL, "another offset in a page");
    // SAFETY: live pairs.
    pairs.into_iter().for_each(|pair| assert_eq!(unsafe { (opened.library.destroy_qp)(pair) }, 0));
}

/// The addresses of a re-registered region depend on its new access flags.
#[test]
fn renames_a_region_that_is_registered_anew() {
    let opened = Opened::new();
    let [a, b] = pairs(&opened);
    let mut places = [vec![0_u8; LEN], vec![0_u8; LEN]];
    let mut source = vec![0_u8; LEN];
    // SAFETY: the memory outlives its regions.
    let (from, to) =
        unsafe { (Name::Own.register(&opened, &mut source), Name::Zero.register(&opened, &mut places[0])) };
    let plain = LOCAL_AND_REMOTE as c_int;
    let zero_based = (LOCAL_AND_REMOTE | ZERO_BASED) as c_int;
    // The memory, its addresses, and the change that leads there.
    for (value, place, is_zero_based, flags, access) in [
        (1, 0, true, 0, 0),
        (2, 1, true, TRANSLATION, 0),
        (3, 1, false, ACCESS, plain),
        (4, 0, false, TRANSLATION, 0),
        (5, 0, true, ACCESS, zero_based),
    ] {
        let at = places[place].as_mut_ptr();
        // SAFETY: live objects, memory that outlives the region.
        let (lkey, target) = unsafe {
            if flags != 0 {
                let rereg = opened.library.ibv_rereg_mr;
                assert_eq!(rereg(to, flags, opened.pd, at.cast(), LEN, access), 0, "{value}");
            }
            ((*from).lkey, (*to).rkey)
        };
        source[0] = value;
        let sge = Sge { addr: source.as_ptr() as u64, length: 1, lkey };
        let name = if is_zero_based { 8 } else { at as u64 + 8 };
        post(a, &mut SendWr::write(1, list(&sge), name, target).with_flags(SendFlags::SIGNALED));
        assert_eq!(wait(&opened, 1)[0].status, WcStatus::SUCCESS, "{value}");
        assert_eq!(places[place][8], value);
    }
    // SAFETY: live objects.
    unsafe {
        [a, b].into_iter().for_each(|pair| assert_eq!((opened.library.destroy_qp)(pair), 0));
        [from, to].into_iter().for_each(|mr| assert_eq!((opened.library.dereg_mr)(mr), 0));
    }
}

//! Memory of the test to register, and every operation on it.

use std::sync::atomic::{AtomicU64, Ordering};

use farcall_verbs::{
    Access, AtomicTarget, Error, MrMemory, ProtectionDomain, QpCap, RawMr, SendWr, Sge, WcOpcode, WcStatus,
    WrOpcode,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::{ALL, End, INLINE, SIGNALED, bytes, join, pair_with};

pub fn fetch_add(wr_id: u64, sges: &[Sge], remote_addr: u64, rkey: u32, add: u64) -> SendWr<'_> {
    let target = AtomicTarget { remote_addr, compare_add: add, swap: 0, rkey };
    SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, wr_id, sges, target)
}

pub fn compare_swap(
    wr_id: u64,
    sges: &[Sge],
    remote_addr: u64,
    rkey: u32,
    compare: u64,
    swap: u64,
) -> SendWr<'_> {
    let target = AtomicTarget { remote_addr, compare_add: compare, swap, rkey };
    SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, wr_id, sges, target)
}

/// Registered memory of the test; unmapped or freed only after its region.
pub struct Private {
    pub base: *mut u8,
    pub len: usize,
    pub mr: Option<Box<dyn RawMr>>,
}

impl Private {
    pub fn at(pd: &dyn ProtectionDomain, base: *mut u8, len: usize, access: Access) -> Result<Self, Error> {
        // SAFETY: the tests keep the memory until after the region, except where they test its absence.
        unsafe { pd.reg_mr(base, len, access) }.map(|mr| Self { base, len, mr: Some(mr) })
    }

    /// Like [`Private::at`], with `remote_addr` as the address for its peers.
    pub fn named_from(
        pd: &dyn ProtectionDomain,
        base: *mut u8,
        len: usize,
        remote_addr: u64,
    ) -> Result<Self, Error> {
        let memory = MrMemory::new(base, len).named_from(remote_addr);
        // SAFETY: the tests keep the memory until after the region, except where they test its absence.
        unsafe { pd.reg_mr_at(memory, ALL) }.map(|mr| Self { base, len, mr: Some(mr) })
    }

    /// Returns the address by which peers refer to its first byte.
    pub fn name(&self) -> u64 {
        self.mr.as_ref().unwrap().remote_addr()
    }

    pub fn key(&self) -> u32 {
        self.mr.as_ref().unwrap().rkey()
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.len);
        Sge { addr: self.base as u64 + at as u64, length: len as u32, lkey: self.key() }
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: the range is inside the memory, and no request is outstanding while tests read it.
        unsafe { self.base.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.len);
        // SAFETY: the word is inside the memory and aligned; all accesses during its use are atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }
}

/// Anonymous or file memory of the test.
pub struct Map(pub *mut u8, pub usize);

impl Map {
    pub fn anonymous(len: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        Self::anonymous_at(std::ptr::null_mut(), len, flags)
    }

    /// Maps memory at or near `base`, if that range is free.
    pub fn anonymous_at(base: *mut u8, len: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without `MAP_FIXED` the mapping replaces no memory, so it aliases none.
        let base = unsafe { rustix::mm::mmap_anonymous(base.cast(), len, prot, flags) }?;
        Ok(Self(base.cast(), len))
    }

    pub fn file(len: usize, flags: MapFlags) -> Self {
        let path = std::env::temp_dir().join(format!("farcall-test-{}-{:?}", std::process::id(), flags));
        let file =
            std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.set_len(len as u64).unwrap();
        std::fs::remove_file(&path).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without `MAP_FIXED` the mapping replaces no memory, so it aliases none.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &file, 0) }.unwrap();
        Self(base.cast(), len)
    }

    pub fn protect(&self, flags: MprotectFlags) {
        // SAFETY: the mapping belongs to the test, and no references to it exist.
        unsafe { rustix::mm::mprotect(self.0.cast(), self.1, flags) }.unwrap();
    }

    /// Unmaps all but the first `len` bytes.
    pub fn cut(&mut self, len: usize) {
        assert!(len <= self.1);
        // SAFETY: the mapping belongs to the test, which does not access the rest any more.
        unsafe { rustix::mm::munmap(self.0.add(len).cast(), self.1 - len) }.unwrap();
        self.1 = len;
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.cut(0);
        }
    }
}

pub const LEN: usize = 512 << 10;

/// Performs every operation between `a`, from its own memory, and `there`, which belongs to `b`.
pub fn every_operation(a: &mut End, b: &mut End, there: &Private, what: &str) {
    let (addr, key) = (there.name(), there.key());
    for (i, len) in [1, 7, 8, 9, 100, 4099, 300_000].into_iter().enumerate() {
        let data = bytes(len, i as u64);
        a.put(0, &data);
        let at = 5 * i;
        let halves = [a.sge(0, len / 2), a.sge(len / 2, len - len / 2)];
        a.send(&[SendWr::write(1, &halves, addr + at as u64, key).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS, "{what}: WRITE of {len}");
        assert!(there.get(at, len) == data, "{what}: WRITE of {len}");
        let back = [a.sge(1 << 20, len / 3), a.sge((1 << 20) + len / 3, len - len / 3)];
        a.send(&[SendWr::read(2, &back, addr + at as u64, key).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS, "{what}: READ of {len}");
        assert!(a.get(1 << 20, len) == data, "{what}: READ of {len}");
    }
    let mut small = *b"inline bytes";
    let inline = [Sge { addr: small.as_mut_ptr() as u64, length: 12, lkey: 0 }];
    a.send(&[SendWr::write(3, &inline, addr + 64, key).with_flags(SIGNALED | INLINE)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS, "{what}: inline");
    assert_eq!(there.get(64, 12), small, "{what}: inline");

    b.recv(9, &[]);
    a.put(0, &bytes(5000, 77));
    let from = [a.sge(0, 5000)];
    a.send(&[SendWr::write(4, &from, addr + 8, key).with_imm(0x1234)]);
    let wc = b.wait();
    assert_eq!(
        (wc.opcode, wc.imm(), wc.byte_len),
        (WcOpcode::RECV_RDMA_WITH_IMM, Some(0x1234), 5000),
        "{what}"
    );
    assert!(there.get(8, 5000) == bytes(5000, 77), "{what}: WRITE with immediate");

    // To posted receives in one kind of memory, and in two.
    for (i, len) in [900, 70_000, 400_000].into_iter().enumerate() {
        let data = bytes(len, 100 + i as u64);
        a.put(0, &data);
        b.recv(i as u64, &[there.sge(3, 800), b.sge(0, 60_000), there.sge(1000, 400_000)]);
        let from = [a.sge(0, 10), a.sge(10, len - 10)];
        a.send(&[SendWr::send(5, &from).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS, "{what}: SEND of {len}");
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (i as u64, WcStatus::SUCCESS, len), "{what}");
        let mut got = there.get(3, len.min(800));
        got.extend(b.get(0, (len - got.len()).min(60_000)));
        got.extend(there.get(1000, len - got.len()));
        assert!(got == data, "{what}: SEND of {len}");
    }

    there.word(16).store(40, Ordering::SeqCst);
    let result = [a.sge(64, 8)];
    a.send(&[
        fetch_add(6, &result, addr + 16, key, 2).with_flags(SIGNALED),
        compare_swap(7, &result, addr + 16, key, 42, 7).with_flags(SIGNALED),
        compare_swap(8, &result, addr + 16, key, 42, 8).with_flags(SIGNALED),
    ]);
    assert!(a.wait_n(3).iter().all(|wc| wc.status.is_success()), "{what}: atomics");
    assert_eq!(
        (there.word(16).load(Ordering::SeqCst), a.get(64, 8)),
        (7, 7_u64.to_ne_bytes().to_vec()),
        "{what}"
    );
}

/// Requests with addresses outside the region are refused, including those of its memory.
pub fn refuses_other_names(there: &Private, b: &End, what: &str) {
    let end = there.name() + there.len as u64;
    for addr in [there.base as u64, end - 7, there.name().wrapping_sub(1)] {
        let (mut a, mut b) = (End::default(), b.sibling());
        join(&mut a, &mut b, End::rts);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::write(1, &sges, addr, there.key()).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR, "{what}: 8 bytes at {addr:#x}");
    }
}

fn pair_and(what: &str, base: *mut u8, len: usize) {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    let there = Private::at(&*b.pd, base, len, ALL).unwrap();
    assert!(b.qp.places_in_order(&**there.mr.as_ref().unwrap()));
    every_operation(&mut a, &mut b, &there, what);
    for name in [0, 0x1_2340] {
        let there = Private::named_from(&*b.pd, base, len, name).unwrap();
        let what = format!("{what}, named from {name:#x}");
        every_operation(&mut a, &mut b, &there, &what);
        refuses_other_names(&there, &b, &what);
    }
}

pub fn kinds_of_memory() {
    let mut heap = vec![0_u64; LEN / 8];
    pair_and("heap", heap.as_mut_ptr().cast(), LEN);
    let mut stack = [0_u64; LEN / 8];
    pair_and("stack", stack.as_mut_ptr().cast(), LEN);
    let untouched = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
    pair_and("anonymous", untouched.0, LEN);
    let shared = Map::file(LEN, MapFlags::SHARED);
    pair_and("shared file", shared.0, LEN);
    let private = Map::file(LEN, MapFlags::PRIVATE);
    pair_and("private file", private.0, LEN);
    let end = End::default();
    pair_and("memory of alloc_mr", end.mr.addr(), LEN);
    match Map::anonymous(2 << 20, MapFlags::PRIVATE | MapFlags::HUGETLB) {
        Ok(huge) => pair_and("huge pages", huge.0, 2 << 20),
        Err(error) => println!("huge pages skipped: {error} (sysctl vm.nr_hugepages=1)"),
    }
    let transparent = Map::anonymous(8 << 20, MapFlags::PRIVATE).unwrap();
    // SAFETY: the call only gives advice on a mapping of the test.
    let _ = unsafe { libc::madvise(transparent.0.cast(), 8 << 20, libc::MADV_HUGEPAGE) };
    pair_and("transparent huge pages", transparent.0, 8 << 20);
}

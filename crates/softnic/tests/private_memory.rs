//! `reg_mr`: memory that the program has already. All kinds of it, both ways to it (through the owner's address space, or
//! by the owner), every operation, what is refused, and what happens when it is gone.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use farcall_verbs::{
    Access, AtomicTarget, Error, ProtectionDomain, QpCap, QpState, RawMr, SendWr, Sge, WcOpcode, WcStatus,
    WrOpcode,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use support::process::*;
use support::*;

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    match role.as_str() {
        "hides" => hides(&mut line),
        "loses" => gone_memory(),
        "owner" => owner(&mut line, args[0] == 1),
        "reader" => reader(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

fn fetch_add(wr_id: u64, sges: &[Sge], remote_addr: u64, rkey: u32, add: u64) -> SendWr<'_> {
    let target = AtomicTarget { remote_addr, compare_add: add, swap: 0, rkey };
    SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, wr_id, sges, target)
}

fn compare_swap(
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

/// Memory of the test, registered; unmapped or freed only after its region.
struct Private {
    base: *mut u8,
    len: usize,
    mr: Option<Box<dyn RawMr>>,
}

impl Private {
    fn at(pd: &dyn ProtectionDomain, base: *mut u8, len: usize, access: Access) -> Result<Self, Error> {
        // SAFETY: the tests keep the memory until after the region, except where its absence is the test.
        unsafe { pd.reg_mr(base, len, access) }.map(|mr| Self { base, len, mr: Some(mr) })
    }

    fn key(&self) -> u32 {
        self.mr.as_ref().unwrap().rkey()
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.len);
        Sge { addr: self.base as u64 + at as u64, length: len as u32, lkey: self.key() }
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: inside the memory; peers are quiet while tests look.
        unsafe { self.base.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.len);
        // SAFETY: inside the memory, aligned; all access while this lives is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }
}

/// Anonymous or file memory of the test's own.
struct Map(*mut u8, usize);

impl Map {
    fn anonymous(len: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        Self::anonymous_at(std::ptr::null_mut(), len, flags)
    }

    /// Near `base`, if nothing is there.
    fn anonymous_at(base: *mut u8, len: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping aliases nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(base.cast(), len, prot, flags) }?;
        Ok(Self(base.cast(), len))
    }

    fn file(len: usize, flags: MapFlags) -> Self {
        let path = std::env::temp_dir().join(format!("farcall-test-{}-{:?}", std::process::id(), flags));
        let file =
            std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.set_len(len as u64).unwrap();
        std::fs::remove_file(&path).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &file, 0) }.unwrap();
        Self(base.cast(), len)
    }

    fn protect(&self, flags: MprotectFlags) {
        // SAFETY: our own mapping, of which nobody holds references.
        unsafe { rustix::mm::mprotect(self.0.cast(), self.1, flags) }.unwrap();
    }

    /// Unmaps all but the first bytes.
    fn cut(&mut self, len: usize) {
        assert!(len <= self.1);
        // SAFETY: as above; the test touches it no more.
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

const LEN: usize = 512 << 10;

/// Every operation between `a`, from its own memory, and `there`, which belongs to `b`.
fn every_operation(a: &mut End, b: &mut End, there: &Private, what: &str) {
    let (addr, key) = (there.base as u64, there.key());
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

    // Into posted receives, of one kind and of two.
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

fn pair_and(what: &str, base: *mut u8, len: usize) {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    let there = Private::at(&*b.pd, base, len, ALL).unwrap();
    assert!(b.qp.places_in_order(&**there.mr.as_ref().unwrap()));
    every_operation(&mut a, &mut b, &there, what);
}

fn kinds_of_memory() {
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
    // SAFETY: advice on our own mapping.
    let _ = unsafe { libc::madvise(transparent.0.cast(), 8 << 20, libc::MADV_HUGEPAGE) };
    pair_and("transparent huge pages", transparent.0, 8 << 20);
}

#[test]
fn any_memory_can_be_registered_and_every_operation_reaches_it() {
    kinds_of_memory();
}

/// A process that cannot open its own address space: not dumpable, and no administrator.
fn hides(line: &mut Line) {
    // SAFETY: plain system calls; this process has one thread that matters.
    unsafe {
        if libc::geteuid() == 0 {
            assert!(libc::setgid(65534) == 0 && libc::setuid(65534) == 0);
        }
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
    }
    assert!(std::fs::File::open("/proc/self/mem").is_err());
    kinds_of_memory();
    gone_memory();
    line.say([1, 0, 0, 0]);
}

#[test]
fn who_cannot_hand_over_its_address_space_serves_its_peers_itself() {
    let mut other = start("hides", &[]);
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
}

/// Unmapped, cut short or made read-only against the promise of `reg_mr`: the initiator gets an error.
fn gone_memory() {
    let page = rustix::param::page_size();
    let attempt = |wr: &dyn Fn(&Private, Sge) -> (u8, u64), spoil: &dyn Fn(&mut Map)| {
        let (mut a, b) = pair();
        let mut map = Map::anonymous(8 * page, MapFlags::PRIVATE).unwrap();
        let there = Private::at(&*b.pd, map.0, 8 * page, ALL).unwrap();
        let (sge, key) = (a.sge(0, 2 * page), there.key());
        let sges = [sge];
        // Once while it is there: the grant is made.
        a.send(&[SendWr::write(0, &sges, map.0 as u64, key).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        spoil(&mut map);
        let (kind, addr) = wr(&there, sge);
        let word = [a.sge(0, 8)];
        a.send(&[match kind {
            0 => SendWr::write(1, &sges, addr, key),
            1 => SendWr::read(1, &sges, addr, key),
            _ => fetch_add(1, &word, addr, key, 1),
        }
        .with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::REM_OP_ERR);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
        drop(b.qp);
    };
    let last = |there: &Private, _| there.base as u64 + 6 * page as u64;
    let gone = |map: &mut Map| map.cut(6 * page);
    let half = |map: &mut Map| map.cut(7 * page);
    for spoil in [&gone as &dyn Fn(&mut Map), &half] {
        attempt(&|there, sge| (0, last(there, sge)), spoil);
        attempt(&|there, sge| (1, last(there, sge)), spoil);
    }
    attempt(&|there, sge| (2, last(there, sge)), &gone);
    attempt(&|there, sge| (2, last(there, sge)), &|map| map.protect(MprotectFlags::READ));
}

/// In a process of its own: other tests would map something else there.
#[test]
fn memory_that_is_gone_is_an_error_of_the_request_and_no_crash() {
    assert_eq!(start("loses", &[]).wait(), Fate::Exited(0));
}

#[test]
fn a_truncated_file_is_an_error_of_the_request_and_no_crash() {
    let (mut a, b) = pair();
    let path = std::env::temp_dir().join(format!("farcall-test-truncated-{}", std::process::id()));
    let file =
        std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(LEN as u64).unwrap();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping aliases nothing.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), LEN, prot, MapFlags::SHARED, &file, 0) }.unwrap();
    let map = Map(base.cast(), LEN);
    let there = Private::at(&*b.pd, map.0, LEN, ALL).unwrap();
    file.set_len(4096).unwrap();
    let sges = [a.sge(0, 64)];
    a.send(&[SendWr::write(1, &sges, map.0 as u64, there.key()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    a.send(&[SendWr::write(2, &sges, map.0 as u64 + LEN as u64 / 2, there.key()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::REM_OP_ERR);
}

#[test]
fn what_must_not_be_registered_is_refused_and_the_range_named() {
    let end = End::default();
    let page = rustix::param::page_size();
    let map = Map::anonymous(8 * page, MapFlags::PRIVATE).unwrap();
    let refused = |base: *mut u8, len, access| {
        let error = Private::at(&*end.pd, base, len, access).err().expect("it must be refused");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(map.0, 0, ALL).contains("at least one byte"));
    assert!(refused(map.0, 8, Access::REMOTE_WRITE).contains("LOCAL_WRITE"));
    assert!(refused(std::ptr::null_mut(), 8, ALL).contains("is not mapped"));
    // SAFETY: the middle is ours and unused.
    unsafe { rustix::mm::mprotect(map.0.add(2 * page).cast(), page, MprotectFlags::READ) }.unwrap();
    let error = refused(map.0.wrapping_add(100), 8 * page - 100, ALL);
    let at = map.0 as usize + 2 * page;
    assert!(error.contains(&format!("{at:#x}..{:#x}", at + page)) && error.contains("read-only"), "{error}");
    // Low, where nothing is mapped unasked: other tests run meanwhile.
    let low = std::ptr::without_provenance_mut::<u8>(1 << 32);
    let before = Map::anonymous_at(low, 5 * page, MapFlags::PRIVATE).unwrap();
    let after = Map::anonymous_at(low.wrapping_add(6 * page), 2 * page, MapFlags::PRIVATE).unwrap();
    assert!(before.0 == low && after.0 == low.wrapping_add(6 * page));
    let at = low as usize + 5 * page;
    let error = refused(low, 8 * page, Access::REMOTE_READ);
    assert!(error.contains(&format!("{at:#x}..{:#x}", at + page)) && error.contains("not mapped"), "{error}");
}

#[test]
fn read_only_memory_can_be_read_by_peers_and_not_written() {
    let (mut a, b) = pair();
    let map = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
    // SAFETY: our own mapping.
    unsafe { map.0.copy_from(bytes(LEN, 3).as_ptr(), LEN) };
    map.protect(MprotectFlags::READ);
    assert!(Private::at(&*b.pd, map.0, LEN, ALL).is_err());
    let there = Private::at(&*b.pd, map.0, LEN, Access::REMOTE_READ).unwrap();
    let sges = [a.sge(0, 5000)];
    a.send(&[SendWr::read(1, &sges, map.0 as u64 + 1, there.key()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    assert!(a.get(0, 5000) == bytes(LEN, 3)[1..5001]);
    a.send(&[SendWr::write(2, &sges, map.0 as u64, there.key()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR);
    assert!(there.get(0, 5000) == bytes(LEN, 3)[..5000]);
}

#[test]
fn keys_bounds_and_permissions_hold_for_private_memory() {
    let mut memory = vec![0_u64; 1024];
    let base = memory.as_mut_ptr().cast::<u8>();
    type Case = (Access, u64, usize, bool, WcStatus);
    let cases: [Case; 6] = [
        (ALL, 0, 8192, false, WcStatus::SUCCESS),
        (ALL, 1, 8192, false, WcStatus::REM_ACCESS_ERR),
        (ALL, u64::MAX, 8, false, WcStatus::REM_ACCESS_ERR),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, 0, 8, false, WcStatus::REM_ACCESS_ERR),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0, 8, true, WcStatus::REM_ACCESS_ERR),
        (Access::LOCAL_WRITE, 0, 8, true, WcStatus::REM_ACCESS_ERR),
    ];
    for (access, offset, len, read, expected) in cases {
        let (mut a, b) = pair();
        let there = Private::at(&*b.pd, base, 8192, access).unwrap();
        let (sges, addr) = ([a.sge(0, len)], (base as u64).wrapping_add(offset));
        let wr = if read {
            SendWr::read(1, &sges, addr, there.key())
        } else {
            SendWr::write(1, &sges, addr, there.key())
        };
        a.send(&[wr.with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, expected, "{access:?} +{offset} {len}");
    }
    let (mut a, b) = pair();
    let there = Private::at(&*b.pd, base, 8192, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let word = [a.sge(0, 8)];
    a.send(&[fetch_add(1, &word, base as u64, there.key(), 1)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR, "no REMOTE_ATOMIC");
    let (mut a, b) = pair();
    let there = Private::at(&*b.pd, base, 8192, ALL).unwrap();
    let word = [a.sge(0, 8)];
    a.send(&[fetch_add(1, &word, base as u64 + 4, there.key(), 1)]);
    assert_eq!(a.wait().status, WcStatus::REM_INV_REQ_ERR, "misaligned");
}

#[test]
fn a_deregistered_key_reaches_nothing_and_its_successor_what_it_names() {
    let (mut a, b) = pair();
    let mut memory = vec![0_u64; 1024];
    let base = memory.as_mut_ptr().cast::<u8>();
    let first = Private::at(&*b.pd, base, 4096, ALL).unwrap();
    let (key, sges) = (first.key(), [a.sge(0, 8)]);
    a.put(0, &[1; 8]);
    a.send(&[SendWr::write(1, &sges, base as u64, key).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    drop(first);
    let second = Private::at(&*b.pd, base, 4096, ALL).unwrap();
    assert_ne!(second.key(), key);
    a.send(&[SendWr::write(2, &sges, base as u64 + 8, second.key()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    a.send(&[SendWr::write(3, &sges, base as u64 + 16, key).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(second.get(16, 8), [0; 8]);
}

/// Owns memory of its heap, tells of it and counts in it with its own atomics; then says what it holds.
fn owner(line: &mut Line, counts: bool) {
    let (end, _) = connect(line, QpCap::default()).unwrap();
    let mut heap = vec![0_u64; LEN / 8];
    let there = Private::at(&*end.pd, heap.as_mut_ptr().cast(), LEN, ALL).unwrap();
    line.say([there.base as u64, there.key().into(), 0, 0]);
    if counts {
        for _ in 0..10_000 {
            there.word(0).fetch_add(1, Ordering::SeqCst);
        }
    }
    line.hear();
    line.say([there.word(0).load(Ordering::SeqCst), there.word(LEN - 8).load(Ordering::SeqCst), 0, 0]);
    line.hear();
}

fn with_owner(counts: bool) -> (Other, End, u64, u32) {
    let mut other = start("owner", &[counts.into()]);
    let (end, _) = connect(&mut other.line, QpCap::default()).unwrap();
    let [addr, key, ..] = other.line.hear().unwrap();
    (other, end, addr, key as u32)
}

#[test]
fn atomics_on_private_memory_are_atomic_with_the_owners_own() {
    let (mut other, mut end, addr, key) = with_owner(true);
    let word = [end.sge(0, 8)];
    for _ in 0..1000 {
        end.send(&[fetch_add(1, &word, addr, key, 1_000_000).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
    }
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([1_000_010_000, 0, 0, 0]));
}

#[test]
fn another_processes_heap_is_written_and_read() {
    let (mut other, mut end, addr, key) = with_owner(false);
    end.put(0, &bytes(LEN, 5));
    let (all, back) = ([end.sge(0, LEN)], [end.sge(LEN, LEN)]);
    end.send(&[SendWr::write(1, &all, addr, key), SendWr::read(2, &back, addr, key).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    assert!(end.get(LEN, LEN) == bytes(LEN, 5));
    other.line.say([0; 4]);
    let word = |at: usize| u64::from_le_bytes(bytes(LEN, 5)[at..at + 8].try_into().unwrap());
    assert_eq!(other.line.hear(), Some([word(0), word(LEN - 8), 0, 0]));
}

#[test]
fn the_death_of_the_owner_ends_requests_to_its_private_memory() {
    for atomic in [false, true] {
        let (other, mut end, addr, key) = with_owner(false);
        let sges = [end.sge(0, 8)];
        end.send(&[SendWr::write(1, &sges, addr, key).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        other.kill();
        assert_eq!(other.wait(), Fate::Killed(libc::SIGKILL));
        let wr = if atomic { fetch_add(2, &sges, addr, key, 1) } else { SendWr::write(2, &sges, addr, key) };
        end.send(&[wr.with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
    }
}

/// Reads its peer's memory until it is told otherwise: never half an old and half a new word at the end of a message.
fn reader(line: &mut Line) {
    let (mut end, to) = connect(line, QpCap::default()).unwrap();
    let [addr, key, rounds, _] = line.hear().unwrap();
    let sges = [end.sge(0, 64)];
    for round in 1..=rounds {
        end.put(0, &[round as u8; 64]);
        end.send(&[SendWr::write(1, &sges, addr, key as u32).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        // Its turn, by a word of its pool.
        let (ours, theirs) = ([end.sge(64, 8)], to.addr + 4096);
        loop {
            end.send(&[SendWr::read(2, &ours, theirs, to.rkey).with_flags(SIGNALED)]);
            assert_eq!(end.wait().status, WcStatus::SUCCESS);
            if end.get(64, 8) == round.to_le_bytes() {
                break;
            }
        }
    }
}

#[test]
fn the_final_byte_of_a_write_into_private_memory_comes_last() {
    const ROUNDS: u64 = 200;
    let mut other = start("reader", &[]);
    let (end, _) = connect(&mut other.line, QpCap::default()).unwrap();
    let mut heap = [0_u64; 8];
    let there = Private::at(&*end.pd, heap.as_mut_ptr().cast(), 64, ALL).unwrap();
    other.line.say([there.base as u64, there.key().into(), ROUNDS, 0]);
    for round in 1..=ROUNDS {
        let began = std::time::Instant::now();
        while there.word(56).load(Ordering::Acquire) >> 56 != round & 0xFF {
            assert!(began.elapsed() < LOST, "round {round} did not come");
            std::hint::spin_loop();
        }
        let all: Vec<u64> = (0..8).map(|i| there.word(i * 8).load(Ordering::Relaxed)).collect();
        assert_eq!(all, [round & 0xFF; 8].map(|byte| byte * 0x0101_0101_0101_0101), "after its final byte");
        end.put(4096, &round.to_le_bytes());
    }
    assert_eq!(other.wait(), Fate::Exited(0));
}

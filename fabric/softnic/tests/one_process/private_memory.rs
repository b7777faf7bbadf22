//! `reg_mr`: existing memory of the program. All kinds of it, both kinds of access (through the owner's address space,
//! or by its service thread), every operation, what is refused, and accesses to memory that was unmapped.

use std::sync::atomic::Ordering;

use crate::support::apart::is_apart;
use crate::support::memory::*;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{Access, Error, MrMemory, QpAttr, QpCap, QpState, SendWr, Sge, WcStatus};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

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

#[test]
fn any_memory_can_be_registered_and_every_operation_reaches_it() {
    kinds_of_memory();
}

/// Peers on other hosts refer to a region by the same addresses as those on this host.
#[test]
fn names_memory_from_another_address_between_hosts() {
    if !is_apart("names_memory_from_another_address_between_hosts", "roce") {
        return;
    }
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    let mut heap = vec![0_u64; LEN / 8];
    for name in [0, 0x1_2340] {
        let there = Private::named_from(&*b.pd, heap.as_mut_ptr().cast(), LEN, name).unwrap();
        every_operation(&mut a, &mut b, &there, &format!("between hosts, named from {name:#x}"));
        refuses_other_names(&there, &b, "between hosts");
    }
}

/// A region whose addresses would wrap around is refused; a re-registered one keeps or changes its addresses.
#[test]
fn registers_anew_under_other_names() {
    let (mut a, b) = pair();
    let mut heap = vec![0_u64; 8];
    let memory = MrMemory::new(heap.as_mut_ptr().cast(), 64);
    // SAFETY: the memory outlives its regions.
    let wraps = unsafe { b.pd.reg_mr_at(memory.named_from(u64::MAX - 62), ALL) };
    assert!(wraps.is_err_and(|error| error.to_string().contains("beyond 2^64")));
    // SAFETY: the memory outlives its regions.
    let mut mr = unsafe { b.pd.reg_mr_at(memory.named_from(0), ALL) }.unwrap();
    let sges = [a.sge(0, 8)];
    for (value, change, name) in [
        (1_u64, None, 0),
        (2, Some(memory), memory.addr as u64),
        (3, Some(memory.named_from(1 << 40)), 1 << 40),
        (4, None, 1 << 40),
    ] {
        // SAFETY: the memory outlives its regions.
        mr = unsafe { b.pd.rereg_mr(&*mr, change, None) }.unwrap();
        a.put(0, &value.to_ne_bytes());
        a.send(&[SendWr::write(value, &sges, name, mr.rkey()).with_flags(SIGNALED)]);
        assert_eq!((a.wait().status, mr.remote_addr()), (WcStatus::SUCCESS, name), "{value}");
        // SAFETY: the memory belongs to the test, and no request is outstanding.
        assert_eq!(unsafe { memory.addr.cast::<u64>().read() }, value);
    }
}

/// A process that cannot open its own address space: it is not dumpable and has no privileges.
fn hides(line: &mut Line) {
    // SAFETY: the system calls use no memory of this process, which has no other thread that depends on its
    // credentials.
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
fn serves_peers_itself_if_it_cannot_share_its_address_space() {
    let mut other = start("hides", &[]);
    assert_eq!(other.hear_in_the_end(), Some([1, 0, 0, 0]));
}

/// Memory that is unmapped, truncated or made read-only, against the contract of `reg_mr`: the initiator receives an
/// error.
fn gone_memory() {
    let page = rustix::param::page_size();
    let attempt = |wr: &dyn Fn(&Private, Sge) -> (u8, u64), spoil: &dyn Fn(&mut Map)| {
        let (mut a, b) = pair();
        let mut map = Map::anonymous(8 * page, MapFlags::PRIVATE).unwrap();
        let there = Private::at(&*b.pd, map.0, 8 * page, ALL).unwrap();
        let (sge, key) = (a.sge(0, 2 * page), there.key());
        let sges = [sge];
        // Once while the memory is mapped, so that the region is granted.
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

/// In a process of its own, because other tests would map other memory there.
#[test]
fn memory_that_is_gone_is_an_error_of_the_request_and_no_crash() {
    let mut other = start("loses", &[]);
    assert_eq!((other.hear_in_the_end(), other.wait()), (None, ProcessState::Exited(0)));
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
    // SAFETY: creates a mapping at an address that the kernel chooses, so it aliases no memory.
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
        // EFAULT for unmapped memory, as programs expect.
        assert!(matches!(error, Error::InvalidArgument { .. } | Error::Os { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(map.0, 8, Access::REMOTE_WRITE).contains("LOCAL_WRITE"));
    assert!(refused(std::ptr::null_mut(), 8, ALL).contains("is not mapped"));
    // SAFETY: the middle page belongs to the test and is unused.
    unsafe { rustix::mm::mprotect(map.0.add(2 * page).cast(), page, MprotectFlags::READ) }.unwrap();
    let error = refused(map.0.wrapping_add(100), 8 * page - 100, ALL);
    let at = map.0 as usize + 2 * page;
    assert!(error.contains(&format!("{at:#x}..{:#x}", at + page)) && error.contains("read-only"), "{error}");
    // At a low address, where the kernel maps nothing by itself: other tests run concurrently.
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
    // SAFETY: the mapping belongs to the test.
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
    // An operation that the queue pair does not permit is reported as such, as with other memory.
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.qp.modify(&QpAttr::init(Access::REMOTE_READ)).unwrap();
    a.rtr(qb);
    b.rtr(qa);
    a.rts();
    b.rts();
    let there = Private::at(&*b.pd, base, 8192, ALL).unwrap();
    let word = [a.sge(0, 8)];
    a.send(&[SendWr::write(1, &word, base as u64, there.key())]);
    assert_eq!(a.wait().status, WcStatus::REM_INV_REQ_ERR, "no REMOTE_WRITE of the queue pair");
}

#[test]
fn rejects_a_deregistered_key_but_accepts_its_successor() {
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

/// Registers heap memory, sends its location and counts in it with its own atomics; then sends its contents.
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
fn the_death_of_the_owner_ends_requests_to_its_private_memory() {
    for atomic in [false, true] {
        let (other, mut end, addr, key) = with_owner(false);
        let sges = [end.sge(0, 8)];
        end.send(&[SendWr::write(1, &sges, addr, key).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        other.end();
        let wr = if atomic { fetch_add(2, &sges, addr, key, 1) } else { SendWr::write(2, &sges, addr, key) };
        end.send(&[wr.with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
    }
}

/// Reads its peer's memory until told to stop: the last word of a message must be completely old or completely new.
fn reader(line: &mut Line) {
    let (mut end, to) = connect(line, QpCap::default()).unwrap();
    let [addr, key, rounds, _] = line.hear().unwrap();
    let sges = [end.sge(0, 64)];
    for round in 1..=rounds {
        end.put(0, &[round as u8; 64]);
        end.send(&[SendWr::write(1, &sges, addr, key as u32).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        // Takes turns with its peer by a word of its allocated region.
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
    assert_eq!(other.wait(), ProcessState::Exited(0));
}

//! Registered memory that is moved in place to a memfd that peers can map: all operations on it, and its transparency
//! to the program.
//!
//! Memory moves only in a program with a single thread, and tests have several, so each test runs in a forked child of
//! its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::holdings::Holdings;
use crate::support::memory::*;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpAttr, QpCap, Revoked, SendWr, WcStatus};
use rustix::mm::{MapFlags, MprotectFlags};

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    let work: &dyn Fn(&mut Line) = match role.as_str() {
        "kinds" => &|_| kinds_of_memory(),
        "edges" => &|_| edges(),
        "left alone" => &|_| left_alone(),
        "threads" => &|_| threads(),
        "helpers" => &|_| helpers(),
        "overlaps" => &|_| overlaps(),
        "returned" => &|_| returned(),
        "returned among threads" => &|_| returned_among_threads(),
        "grows" => &|_| grows(),
        "owner" => &owner,
        "forks" => &forks,
        other => panic!("unknown role {other}"),
    };
    MOVED_BYTES_MAX.store(64 << 20, Ordering::Relaxed);
    assert_eq!(in_child(|| work(&mut line)), 0, "{role}");
    line.say([0xF1, 0, 0, 0]);
    std::process::exit(0);
}

/// Runs a role that needs no other process.
fn run(role: &str) {
    let mut other = start(role, &[]);
    assert_eq!(other.hear_in_the_end(), Some([0xF1, 0, 0, 0]), "{role}");
}

/// Returns whether the page at `at` is in a memfd that peers can map.
fn is_moved(at: *mut u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let at = at as u64;
    let line = maps.lines().find(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap()).contains(&at)
    });
    let line = line.expect("it is mapped");
    line.contains("memfd:farcall-registered") && line.split(' ').nth(1).unwrap().ends_with('s')
}

fn page() -> usize {
    rustix::param::page_size()
}

fn anonymous(pages: usize) -> Map {
    Map::anonymous(pages * page(), MapFlags::PRIVATE).unwrap()
}

fn word(at: *mut u8) -> &'static AtomicU64 {
    // SAFETY: the tests pass addresses of words in mappings that outlive their use; all accesses are atomic.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// Writes `value` to `addr` from `end`'s own memory.
fn write(end: &mut End, value: u64, addr: u64, key: u32) -> WcStatus {
    end.put(0, &value.to_ne_bytes());
    let sges = [end.sge(0, 8)];
    end.send(&[SendWr::write(1, &sges, addr, key).with_flags(SIGNALED)]);
    end.wait().status
}

#[test]
fn reaches_moved_and_remaining_memory_by_every_operation() {
    run("kinds");
    run("edges");
}

/// A region that begins and ends within pages.
fn edges() {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let map = anonymous(LEN / page() + 3);
    // SAFETY: the range is the entire mapping.
    unsafe { map.0.write_bytes(0xEE, map.1) };
    let (before, after) = (page() - 304, map.1 - LEN - (page() - 304));
    let base = map.0.wrapping_add(before);
    let (mut a, mut b) = pair_with(cap, cap);
    let there = Private::at(&*b.pd, base, LEN, ALL).unwrap();
    assert!(!is_moved(map.0) && is_moved(map.0.wrapping_add(page())), "a neighbour lies on the first page");
    assert!(!is_moved(base.wrapping_add(LEN)) && is_moved(base.wrapping_add(LEN - page())));
    assert!(there.get(0, LEN) == vec![0xEE; LEN], "moving changed it");
    every_operation(&mut a, &mut b, &there, "edges");
    for (addr, len) in [(base as u64 - 1, 8), (base as u64 + LEN as u64 - 7, 8), (base as u64 - 1, LEN + 2)] {
        let (mut a, mut b) = (End::default(), b.sibling());
        join(&mut a, &mut b, End::rts);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::write(1, &sges, addr, there.key()).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR, "{len} bytes at {addr:#x}");
    }
    let named = Private::named_from(&*b.pd, base, LEN, 0).unwrap();
    every_operation(&mut a, &mut b, &named, "edges, zero-based");
    refuses_other_names(&named, &b, "edges, zero-based");
    drop(named);
    drop(there);
    let outside = |at: usize, len: usize| {
        // SAFETY: the range is inside the mapping, which no other thread writes to.
        unsafe { std::slice::from_raw_parts(map.0.add(at), len) == vec![0xEE; len] }
    };
    assert!(
        outside(0, before) && outside(before + LEN, after),
        "something outside of the region was changed"
    );
}

#[test]
fn only_private_memory_that_nothing_else_holds_is_moved() {
    run("left alone");
}

fn left_alone() {
    let end = End::default();
    let moves = |base: *mut u8, len, access| {
        let there = Private::at(&*end.pd, base, len, access).unwrap();
        let at = base as usize;
        let moved = is_moved(base.wrapping_add(at.next_multiple_of(page()) - at));
        drop(there);
        moved
    };
    let map = anonymous(8);
    assert!(moves(map.0, map.1, ALL), "so the rest means something");
    assert!(!moves(map.0.wrapping_add(1), 2 * page() - 2, ALL), "parts of two pages");
    assert!(
        !moves(map.0, map.1, farcall_verbs::Access::empty()),
        "nobody writes there or reads it from afar"
    );
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        let file = Map::file(1 << 16, flags);
        assert!(!moves(file.0, file.1, ALL), "a file, {flags:?}");
    }
    let shared = Map::anonymous(1 << 16, MapFlags::SHARED).unwrap();
    assert!(!moves(shared.0, shared.1, ALL), "shared with children");
    let read_only = anonymous(1);
    read_only.protect(MprotectFlags::READ);
    assert!(!moves(read_only.0, read_only.1, farcall_verbs::Access::REMOTE_READ), "read-only");
    let large = Map::anonymous(65 << 20, MapFlags::PRIVATE | MapFlags::NORESERVE).unwrap();
    assert!(!moves(large.0, large.1, ALL), "more than the limit");
    // SAFETY: the page was mapped by this test.
    unsafe {
        assert_eq!(libc::mlock(large.0.cast(), 1), 0);
        assert!(!moves(map.0, map.1, ALL), "the program locks memory");
        assert_eq!(libc::munlock(large.0.cast(), 1), 0);
        assert!(moves(map.0, map.1, ALL));
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        assert!(!moves(map.0, map.1, ALL), "a process that hides its memory");
    }
}

#[test]
fn a_program_with_threads_keeps_its_memory_where_it_is() {
    run("threads");
}

fn threads() {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    let map = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || left.recv());
    let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
    assert!(!is_moved(map.0));
    every_operation(&mut a, &mut b, &there, "among threads");
    drop((there, leave));
    let _ = thread.join().unwrap();
    // A thread that was joined may be listed for a moment.
    let began = std::time::Instant::now();
    while Holdings::now().threads > 2 {
        assert!(began.elapsed() < LOST, "the thread does not go");
        std::thread::yield_now();
    }
    let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
    assert!(is_moved(map.0));
    every_operation(&mut a, &mut b, &there, "alone again");
}

#[test]
fn moves_memory_despite_an_intermittent_thread() {
    run("helpers");
}

fn helpers() {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    // The helper writes, in its iterations, to memory that moves; no write may be lost.
    let map = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
    let (counter, turns) = (map.0 as usize, AtomicU64::new(0));
    let turns: &'static AtomicU64 = Box::leak(Box::new(turns));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_signals();
        farcall_softnic::helper_turn(|| tell.send(()).unwrap());
        loop {
            farcall_softnic::helper_turn(|| {
                word(std::ptr::with_exposed_provenance_mut(counter)).fetch_add(1, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
            });
            // Lets other threads acquire the lock, which is not fair.
            std::thread::yield_now();
        }
    });
    told.recv().unwrap();
    for _ in 0..20 {
        let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
        assert!(is_moved(map.0));
        let before = turns.load(Ordering::SeqCst);
        while turns.load(Ordering::SeqCst) < before + 3 {
            std::thread::yield_now();
        }
        drop(there);
        assert!(!is_moved(map.0));
    }
    // A child has no helper, and its iterations are not delayed.
    let child = in_child(|| farcall_softnic::helper_turn(|| word(map.0).store(0, Ordering::SeqCst)));
    assert_eq!(child, 0);
    let mut counted = (0, 0);
    farcall_softnic::helper_turn(|| {
        counted = (word(map.0).load(Ordering::SeqCst), turns.load(Ordering::SeqCst));
    });
    assert_eq!(counted.0, counted.1, "what it wrote while memory moved was lost");
    let other = Map::anonymous(LEN, MapFlags::PRIVATE).unwrap();
    let there = Private::at(&*b.pd, other.0, other.1, ALL).unwrap();
    assert!(is_moved(other.0));
    every_operation(&mut a, &mut b, &there, "beside a helper");
    // The helper continues until the process ends.
    std::mem::forget(map);
}

fn block_signals() {
    // SAFETY: the set is a local variable, and the call changes the mask of this thread only.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

#[test]
fn keeps_memory_moved_until_its_last_region_is_deregistered() {
    run("overlaps");
}

fn overlaps() {
    let (mut a, b) = pair();
    let map = anonymous(9);
    let at = |page_number: usize| map.0.wrapping_add(page_number * page());
    let first = Private::at(&*b.pd, at(0), 6 * page(), ALL).unwrap();
    let second = Private::at(&*b.pd, at(3), 6 * page(), ALL).unwrap();
    let inner = Private::at(&*b.pd, at(4), page(), ALL).unwrap();
    assert!(is_moved(at(0)) && is_moved(at(5)), "of the first region");
    assert!(!is_moved(at(6)), "peers might write there already");
    for (region, page_number, value) in
        [(&first, 0, 1), (&first, 5, 2), (&second, 3, 3), (&second, 8, 4), (&inner, 4, 5)]
    {
        assert_eq!(write(&mut a, value, at(page_number) as u64, region.key()), WcStatus::SUCCESS);
        assert_eq!(word(at(page_number)).load(Ordering::SeqCst), value);
    }
    drop(first);
    assert!(is_moved(at(5)), "the second has it still");
    assert_eq!(write(&mut a, 6, at(5) as u64, second.key()), WcStatus::SUCCESS);
    assert_eq!(word(at(5)).load(Ordering::SeqCst), 6);
    drop(second);
    assert_eq!(write(&mut a, 7, at(4) as u64, inner.key()), WcStatus::SUCCESS);
    drop(inner);
    let words: Vec<u64> = (0..9).map(|i| word(at(i)).load(Ordering::SeqCst)).collect();
    assert_eq!(words, [1, 0, 0, 3, 7, 6, 0, 0, 4]);
    assert!((0..9).all(|i| !is_moved(at(i))));
}

#[test]
fn deregistered_memory_is_private_again() {
    run("returned");
    run("returned among threads");
}

/// Verifies that memory that was moved and restored behaves like any other memory.
fn is_as_before(a: &mut End, map: &Map, key: u32) {
    assert!(!is_moved(map.0));
    assert_eq!(write(a, 99, map.0 as u64, key), WcStatus::REM_ACCESS_ERR);
    assert_eq!(word(map.0).load(Ordering::SeqCst), 5, "after its region");
    let code = in_child(|| word(map.0).store(6, Ordering::SeqCst));
    assert_eq!((code, word(map.0).load(Ordering::SeqCst)), (0, 5), "the child has its own");
    // SAFETY: the memory was mapped by this test.
    unsafe { assert_eq!(libc::madvise(map.0.cast(), map.1, libc::MADV_DONTNEED), 0) };
    assert_eq!(word(map.0).load(Ordering::SeqCst), 0, "what was given to the system comes back as zeros");
}

fn returned() {
    let (mut a, b) = pair();
    let map = anonymous(4);
    for round in 0..3 {
        word(map.0).store(4 + round, Ordering::SeqCst);
        let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
        assert!(is_moved(map.0));
        assert_eq!(word(map.0).load(Ordering::SeqCst), 4 + round);
        assert_eq!(write(&mut a, 5, map.0 as u64, there.key()), WcStatus::SUCCESS);
        assert_eq!(word(map.0).load(Ordering::SeqCst), 5);
        let key = there.key();
        let Private { mr, .. } = there;
        assert_eq!(mr.unwrap().dereg(), Revoked::Now);
        if round == 2 {
            is_as_before(&mut a, &map, key);
        }
    }
}

/// Threads started after the registration write to the memory continuously while it is restored.
fn returned_among_threads() {
    const THREADS: usize = 2;
    let (mut a, b) = pair();
    let map = anonymous(4);
    let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
    assert!(is_moved(map.0));
    assert_eq!(write(&mut a, 5, map.0 as u64, there.key()), WcStatus::SUCCESS);
    let ends = AtomicBool::new(false);
    let words: Vec<[&'static AtomicU64; 4]> = (0..THREADS)
        .map(|thread| std::array::from_fn(|i| word(map.0.wrapping_add(i * page() + 8 * (thread + 1)))))
        .collect();
    let at = |thread: usize, page_number: usize| words[thread][page_number];
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let count = |thread: usize| {
            let (ends, words): (_, [&AtomicU64; 4]) = (&ends, words[thread]);
            scope.spawn(move || {
                let mut rounds = 0;
                while !ends.load(Ordering::SeqCst) {
                    for word in words {
                        word.fetch_add(1, Ordering::SeqCst);
                    }
                    rounds += 1;
                }
                rounds
            })
        };
        let threads: Vec<_> = (0..THREADS).map(count).collect();
        while (0..THREADS).any(|thread| at(thread, 3).load(Ordering::SeqCst) == 0) {
            std::thread::yield_now();
        }
        let key = there.key();
        drop(there);
        let seen: Vec<u64> = (0..THREADS).map(|thread| at(thread, 3).load(Ordering::SeqCst)).collect();
        while (0..THREADS).any(|thread| at(thread, 3).load(Ordering::SeqCst) <= seen[thread] + 10) {
            std::thread::yield_now();
        }
        ends.store(true, Ordering::SeqCst);
        let rounds = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(write(&mut a, 99, map.0 as u64, key), WcStatus::REM_ACCESS_ERR);
        rounds
    });
    for (thread, rounds) in rounds.into_iter().enumerate() {
        for i in 0..4 {
            assert_eq!(at(thread, i).load(Ordering::SeqCst), rounds, "what a thread wrote was lost");
        }
    }
    let (mut a, _b) = pair();
    let code = in_child(|| word(map.0).store(6, Ordering::SeqCst));
    assert_eq!((code, word(map.0).load(Ordering::SeqCst)), (0, 5), "the child has its own");
    let _ = a.poll();
    // SAFETY: the memory was mapped by this test.
    unsafe { assert_eq!(libc::madvise(map.0.cast(), map.1, libc::MADV_DONTNEED), 0) };
    assert_eq!(word(map.0).load(Ordering::SeqCst), 0);
}

/// Enlarges a mapping that is moved, as `realloc` does.
fn grows() {
    let (mut a, b) = pair();
    let map = anonymous(2);
    let there = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
    assert_eq!(write(&mut a, 5, map.0 as u64 + 8, there.key()), WcStatus::SUCCESS);
    // SAFETY: the memory was mapped by this test, and no other code depends on its address.
    let grown = unsafe { libc::mremap(map.0.cast(), map.1, 16 * page(), libc::MREMAP_MAYMOVE) }.cast::<u8>();
    let grown = Map(grown, 16 * page());
    std::mem::forget(map);
    let words =
        |map: &Map| [8, page(), 15 * page()].map(|at| word(map.0.wrapping_add(at)).load(Ordering::SeqCst));
    assert_eq!(words(&grown), [5, 0, 0]);
    drop(there);
    assert_eq!(words(&grown), [5, 0, 0]);
    assert!(!is_moved(grown.0));
}

#[test]
fn a_mapping_that_grows_while_it_is_registered_is_as_any_other() {
    run("grows");
}

/// Registers memory for its peer, sends its location, and follows the peer's requests.
fn owner(line: &mut Line) {
    let (end, _) = connect(line, QpCap::default()).unwrap();
    let map = anonymous(4);
    let mut there = Some(Private::at(&*end.pd, map.0, map.1, ALL).unwrap());
    assert!(is_moved(map.0));
    line.say([map.0 as u64, there.as_ref().unwrap().key().into(), 0, 0]);
    while let Some([what, ..]) = line.hear() {
        match what {
            1 => drop(there.take()),
            2 => word(map.0).store(1000, Ordering::SeqCst),
            _ => break,
        }
        line.say([word(map.0).load(Ordering::SeqCst), is_moved(map.0).into(), 0, 0]);
    }
}

#[test]
fn a_peer_that_has_moved_memory_mapped_loses_it_with_the_region() {
    let mut other = start("owner", &[]);
    let (mut end, to) = connect(&mut other.line, QpCap::default()).unwrap();
    let [addr, key, ..] = other.line.hear().unwrap();
    let word = [end.sge(64, 8)];
    assert_eq!(write(&mut end, 41, addr, key as u32), WcStatus::SUCCESS);
    end.send(&[fetch_add(1, &word, addr, key as u32, 1).with_flags(SIGNALED)]);
    assert_eq!((end.wait().status, end.get(64, 8)), (WcStatus::SUCCESS, 41_u64.to_ne_bytes().to_vec()));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("memfd:farcall-registered"), "it was reached by system calls");
    other.line.say([1, 0, 0, 0]);
    assert_eq!(other.line.hear(), Some([42, 0, 0, 0]), "private again, with its bytes");
    other.line.say([2, 0, 0, 0]);
    assert_eq!(other.line.hear(), Some([1000, 0, 0, 0]));
    assert_eq!(write(&mut end, 7, addr, key as u32), WcStatus::REM_ACCESS_ERR);
    other.line.say([3, 0, 0, 0]);
    assert_eq!(other.line.hear(), Some([0xF1, 0, 0, 0]), "what it holds is unharmed");
    let _ = (to.addr, QpAttr::default());
}

/// Forks while its memory is moved; parent, child and peer write, each where it is permitted.
fn forks(line: &mut Line) {
    let (end, _) = connect(line, QpCap::default()).unwrap();
    let map = anonymous(4);
    let at = |page_number: usize| word(map.0.wrapping_add(page_number * page()));
    let there = Private::at(&*end.pd, map.0, map.1, ALL).unwrap();
    at(0).store(1, Ordering::SeqCst);
    line.say([map.0 as u64, there.key().into(), 0, 0]);
    // The peer has written 2 to the second page.
    line.hear();
    assert!(is_moved(map.0) && at(1).load(Ordering::SeqCst) == 2);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let child = move || {
        use std::io::Read;
        assert!(!is_moved(map.0), "it is the child's own");
        // Not before parent and peer have written.
        (&theirs).read_exact(&mut [0]).unwrap();
        let seen: Vec<u64> = (0..4).map(|i| at(i).load(Ordering::SeqCst)).collect();
        assert_eq!(seen, [1, 2, 0, 0], "as of the fork");
        (0..4).for_each(|i| at(i).store(9, Ordering::SeqCst));
        // The child may register it on a device of its own.
        let (mut a, b) = pair();
        let again = Private::at(&*b.pd, map.0, map.1, ALL).unwrap();
        assert!(is_moved(map.0));
        assert_eq!(write(&mut a, 10, map.0 as u64, again.key()), WcStatus::SUCCESS);
        assert_eq!(at(0).load(Ordering::SeqCst), 10);
        assert_eq!(in_child(|| assert_eq!(at(0).load(Ordering::SeqCst), 10)), 0);
    };
    let map = &map;
    let meanwhile = || {
        use std::io::Write;
        at(2).store(3, Ordering::SeqCst);
        line.say([0; 4]);
        // The peer has written 4 to the last page.
        line.hear();
        (&ours).write_all(&[1]).unwrap();
    };
    assert_eq!(in_child_while(child, meanwhile), 0, "the child");
    let seen: Vec<u64> = (0..4).map(|i| at(i).load(Ordering::SeqCst)).collect();
    assert_eq!(seen, [1, 2, 3, 4], "the child wrote into its parent's memory");
    assert!(is_moved(map.0));
    line.say([0; 4]);
    // The peer has written 5 to the first page.
    line.hear();
    assert_eq!(at(0).load(Ordering::SeqCst), 5);
}

#[test]
fn a_forked_child_has_its_own_copy_of_moved_memory() {
    let mut other = start("forks", &[]);
    let (mut end, _) = connect(&mut other.line, QpCap::default()).unwrap();
    let [addr, key, ..] = other.line.hear().unwrap();
    for (page_number, value) in [(1, 2), (3, 4), (0, 5)] {
        let addr = addr + page_number * page() as u64;
        assert_eq!(write(&mut end, value, addr, key as u32), WcStatus::SUCCESS);
        other.line.say([0; 4]);
        if value < 5 {
            assert_eq!(other.line.hear(), Some([0; 4]));
        }
    }
    assert_eq!(other.line.hear(), Some([0xF1, 0, 0, 0]));
}

//! Child processes of these tests.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use farcall_memory::{ClientConfig, PAGE_BYTES};
use farcall_region::*;

use crate::support::*;

const PAGES: usize = 128;

/// Entry point of the child process.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    die_with_parent();
    match &*role {
        "node" => be_node(),
        "reader of what is lost" => read_what_is_lost(),
        "taker of its own pages" => take_own_pages(),
        "parent" => be_parent(),
        other => panic!("{other}"),
    }
}

fn nodes() -> Vec<String> {
    std::env::var(NODES).unwrap().split(' ').map(str::to_owned).collect()
}

/// All pages of a region are on nodes, which are killed.
fn read_what_is_lost() {
    let config = config(nodes(), PAGES, 64);
    // Tolerates a busy machine while the nodes run.
    let memory = ClientConfig { patience: std::time::Duration::from_secs(10), ..config.memory };
    let mut region = RemoteRegion::open(&nic(), RegionConfig { memory, ..config }).unwrap();
    region.bytes_mut().fill(5);
    until_gone(region.handle(), PAGES * PAGE_BYTES);
    // One page is resident.
    assert_eq!(region.bytes()[9 * PAGE_BYTES], 5);
    println!("all are out");
    wait_to_be_told();
    assert_eq!(region.bytes()[9 * PAGE_BYTES], 5);
    println!("one is here");
    // The kernel reports the exits with a delay. The loop accesses more pages than local memory holds, so it keeps
    // reading from the nodes.
    let by = std::time::Instant::now() + LOST;
    for page in (10..PAGES).cycle().take_while(|_| std::time::Instant::now() < by) {
        assert_eq!(region.bytes()[page * PAGE_BYTES], 5);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Violates the contract of a region: the program removes a page of it.
fn take_own_pages() {
    let mut region = RemoteRegion::open(&nic(), config(nodes(), PAGES, 64)).unwrap();
    let first = region.bytes_mut();
    first[..PAGE_BYTES].fill(5);
    // SAFETY: the range is one page inside the region, and no reference to it is used during the call.
    unsafe {
        rustix::mm::madvise(first.as_mut_ptr().cast(), PAGE_BYTES, rustix::mm::Advice::LinuxDontNeed)
            .unwrap();
    }
    println!("read {}", std::hint::black_box(&region.bytes()[0]));
}

/// Forks. The child accesses the region, which it does not inherit.
fn be_parent() {
    let mut region = RemoteRegion::open(&nic(), config(nodes(), PAGES, 64)).unwrap();
    region.bytes_mut().fill(5);
    let first = region.bytes().as_ptr();
    // SAFETY: after a fork of a process with several threads, the child must not depend on locks that other threads
    // held. The code below uses memory allocation, which glibc makes usable in the child, and methods of the region
    // that return or panic because they run in a forked child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refuses = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.bytes()[0])).is_err()
            && matches!(region.handle().snapshot("/nowhere"), Err(SnapshotError::Forked))
            && region.handle().status() == RegionStatus::default();
        if !refuses {
            std::process::abort();
        }
        drop(region);
        // SAFETY: the address is not mapped in the child: the read is expected to raise SIGSEGV, which the parent
        // checks.
        let read = unsafe { first.read_volatile() };
        std::process::exit(read.into());
    }
    let mut status = 0;
    // SAFETY: `child` is an unreaped child of this process, and `status` is valid for the write of its status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    println!("its child ended by <{}>", libc::WTERMSIG(status));
    assert!(region.bytes().iter().all(|byte| *byte == 5));
    println!("the parent goes on");
}

fn signal_of(role: &str, lines: &[&str], go: impl FnOnce(&mut Other)) -> Option<i32> {
    let (_nodes, addresses) = nodes_here(2);
    let mut other = Other::start(role, &addresses);
    for line in lines {
        other.wait_for(line);
    }
    go(&mut other);
    other.end().signal()
}

#[test]
fn kills_a_process_that_discards_region_pages() {
    assert_eq!(signal_of("taker of its own pages", &[], |_| ()), Some(libc::SIGBUS));
}

#[test]
fn kills_a_forked_child_that_accesses_the_region() {
    let (_nodes, addresses) = nodes_here(1);
    let mut other = Other::start("parent", &addresses);
    let line = other.wait_for("its child ended by <");
    assert!(line.contains(&format!("<{}>", libc::SIGSEGV)), "{line}");
    other.wait_for("the parent goes on");
    assert!(other.end().success());
}

#[test]
fn raises_sigbus_for_a_page_that_all_nodes_lost() {
    let (mut nodes, addresses) = node_processes(2);
    let mut other = Other::start("reader of what is lost", &addresses);
    other.wait_for("all are out");
    nodes.iter_mut().for_each(Other::kill);
    other.tell();
    other.wait_for("one is here");
    let (ended, said) = (other.end(), other.rest());
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}: {said}");
}

#[test]
fn reads_into_and_out_of_a_region_by_system_calls() {
    let (_nodes, addresses) = nodes_here(1);
    let mut region = RemoteRegion::open(&nic(), config(addresses, PAGES, 64)).unwrap();
    assert!(region.supports_system_calls() && matches!(Preflight::run(), Preflight::All));
    let bytes: Vec<u8> = (0..PAGES * PAGE_BYTES).map(|at| (at / 7) as u8).collect();
    let file = TestFile::new("calls");
    std::fs::write(&file.0, &bytes).unwrap();
    std::fs::File::open(&file.0).unwrap().read_exact(region.bytes_mut()).unwrap();
    assert!(region.bytes() == bytes);
    until_gone(region.handle(), bytes.len());
    std::fs::write(&file.0, region.bytes()).unwrap();
    assert!(std::fs::read(&file.0).unwrap() == bytes);
}

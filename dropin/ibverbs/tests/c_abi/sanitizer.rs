//! Under AddressSanitizer or ThreadSanitizer, an error of the program terminates it with a report. This shows that the
//! library is built with the sanitizer as well; otherwise the other tests would detect nothing.

use std::ffi::c_int;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::library::{Library, device};

/// Set to `address` or `thread` if these tests and the library are built with that sanitizer.
const SANITIZER: &str = "FARCALL_ABI_SANITIZER";
/// Contains the error that a child process makes.
const MISTAKE: &str = "FARCALL_ABI_MISTAKE";

/// Frees a domain twice.
fn domain_freed_twice() {
    let library = Library::get();
    // SAFETY: none. The process is expected to terminate here.
    unsafe {
        let context = (library.open_device)(device());
        let pd = (library.alloc_pd)(context);
        assert_eq!((library.dealloc_pd)(pd), 0);
        (library.dealloc_pd)(pd);
    }
}

/// Passes one byte where the library writes an `int`.
fn count_too_short() {
    let byte = Box::into_raw(Box::new(0_u8));
    // SAFETY: none. The process is expected to terminate here.
    unsafe { (Library::get().get_device_list)(byte.cast::<c_int>()) };
}

/// Two threads receive a result in the same buffer.
fn answer_shared_by_threads() {
    /// Buffer that the threads must not share.
    struct Place(*mut u8);
    // SAFETY: none. The process is expected to terminate.
    unsafe impl Sync for Place {}
    let library = Library::get();
    // SAFETY: the order of calls is that of the man page.
    let context = unsafe { (library.open_device)(device()) } as usize;
    let place = Place(Box::leak(Box::new([0_u8; 16])).as_mut_ptr());
    // Both threads exist all the time, because the sanitizer forgets the accesses of threads that have ended; and
    // nothing orders their accesses.
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let meet = |at: &AtomicU32| {
        at.fetch_add(1, Ordering::Relaxed);
        while at.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
    };
    let ask = || {
        let place = &place;
        meet(&begun);
        for _ in 0..100 {
            // SAFETY: none. The process is expected to terminate.
            unsafe { (library.query_gid)(context as *mut _, 1, 0, place.0.cast()) };
        }
        meet(&ended);
    };
    std::thread::scope(|scope| {
        scope.spawn(ask);
        scope.spawn(ask);
    });
}

/// Runs in the process that the test starts for it.
#[test]
fn mistake() {
    match std::env::var(MISTAKE).as_deref() {
        Ok("domain_freed_twice") => domain_freed_twice(),
        Ok("count_too_short") => count_too_short(),
        Ok("answer_shared_by_threads") => answer_shared_by_threads(),
        Ok(other) => panic!("{MISTAKE}={other}"),
        Err(_) => {}
    }
}

fn report_of(mistake: &str) -> String {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["sanitizer::mistake", "--exact", "--nocapture", "--test-threads=1"])
        .env(MISTAKE, mistake)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{mistake} went unnoticed:\n{said}");
    said
}

#[test]
fn mistakes_are_reported_in_the_library() {
    let mistakes: &[_] = match std::env::var(SANITIZER).as_deref() {
        Ok("address") => &[
            ("domain_freed_twice", "heap-use-after-free", "ibv_dealloc_pd"),
            ("count_too_short", "heap-buffer-overflow", "ibv_get_device_list"),
        ],
        Ok("thread") => &[("answer_shared_by_threads", "data race", "ibv_query_gid")],
        Ok(other) => panic!("{SANITIZER}={other}: there are address and thread"),
        Err(_) => return,
    };
    for (mistake, kind, within) in mistakes {
        let said = report_of(mistake);
        assert!(said.contains(kind) && said.contains(within), "{mistake} is no {kind} in {within}:\n{said}");
    }
}

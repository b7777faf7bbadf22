//! Under AddressSanitizer or ThreadSanitizer a program's mistake ends it with a report. That shows that the library is
//! built with it, too: otherwise the other tests would find nothing.

use std::ffi::c_int;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::library::{Library, device};

/// Set to `address` or `thread` by whoever builds these tests and the library with that sanitizer.
const SANITIZER: &str = "FARCALL_ABI_SANITIZER";
/// For the process that makes a mistake: which.
const MISTAKE: &str = "FARCALL_ABI_MISTAKE";

/// A domain, freed by the library and given to it again.
fn domain_freed_twice() {
    let library = Library::get();
    // SAFETY: none. The process is to end here.
    unsafe {
        let context = (library.open_device)(device());
        let pd = (library.alloc_pd)(context);
        assert_eq!((library.dealloc_pd)(pd), 0);
        (library.dealloc_pd)(pd);
    }
}

/// Room for one byte where the library writes an `int`.
fn count_too_short() {
    let byte = Box::into_raw(Box::new(0_u8));
    // SAFETY: none. The process is to end here.
    unsafe { (Library::get().get_device_list)(byte.cast::<c_int>()) };
}

/// Two threads take an answer in one place.
fn answer_shared_by_threads() {
    /// Where threads put what they must not.
    struct Place(*mut u8);
    // SAFETY: none. The process is to end badly.
    unsafe impl Sync for Place {}
    let library = Library::get();
    // SAFETY: as the man page shows it.
    let context = unsafe { (library.open_device)(device()) } as usize;
    let place = Place(Box::leak(Box::new([0_u8; 16])).as_mut_ptr());
    // Both live all the time, for of threads that have ended the sanitizer forgets what they did; and nothing orders
    // them.
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
            // SAFETY: none, as above.
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

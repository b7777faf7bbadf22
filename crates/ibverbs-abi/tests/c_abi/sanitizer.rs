//! Under AddressSanitizer a program's mistake ends it with a report. That shows that the library is built with it, too, and
//! takes its memory from it: otherwise the other tests would find nothing.

use std::ffi::c_int;
use std::process::{Command, Stdio};

use crate::library::{Library, device};

/// Set to `address` by whoever builds these tests and the library with that sanitizer.
const SANITIZER: &str = "FARCALL_ABI_SANITIZER";
/// For the process that makes a mistake: which.
const MISTAKE: &str = "FARCALL_ABI_MISTAKE";

/// A domain, freed by the library and given to it again.
fn domain_freed_twice() {
    let library = Library::get();
    // SAFETY: none. The process is to end here.
    unsafe {
        let context = (library.ibv_open_device)(device());
        let pd = (library.ibv_alloc_pd)(context);
        assert_eq!((library.ibv_dealloc_pd)(pd), 0);
        (library.ibv_dealloc_pd)(pd);
    }
}

/// Room for one byte where the library writes an `int`.
fn count_too_short() {
    let byte = Box::into_raw(Box::new(0_u8));
    // SAFETY: none. The process is to end here.
    unsafe { (Library::get().ibv_get_device_list)(byte.cast::<c_int>()) };
}

/// Runs in the process that the test starts for it.
#[test]
fn mistake() {
    match std::env::var(MISTAKE).as_deref() {
        Ok("domain_freed_twice") => domain_freed_twice(),
        Ok("count_too_short") => count_too_short(),
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
    match std::env::var(SANITIZER).as_deref() {
        Ok("address") => {}
        Ok(other) => panic!("{SANITIZER}={other}: only address is known"),
        Err(_) => return,
    }
    for (mistake, kind, within) in [
        ("domain_freed_twice", "heap-use-after-free", "ibv_dealloc_pd"),
        ("count_too_short", "heap-buffer-overflow", "ibv_get_device_list"),
    ] {
        let said = report_of(mistake);
        assert!(said.contains(kind) && said.contains(within), "{mistake} is no {kind} in {within}:\n{said}");
    }
}

//! No call blocks for another process. This is verified by the number of voluntary context switches of the calling
//! thread and not by time, so the test runs in a process of its own.

use crate::support::apart::is_alone;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};

/// Number of queue pairs that connect to a stopped process.
const PAIRS: u64 = 8;

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    let ends: Vec<_> = match role.as_str() {
        "known" => vec![connect(&mut line, QpCap::default()).unwrap()],
        _ => Vec::new(),
    };
    let unknown = End::default();
    tell(&mut line, &unknown);
    line.hear();
    drop(ends);
    std::process::exit(0);
}

/// Returns the number of times that this thread has blocked.
fn waits() -> u64 {
    // SAFETY: the kernel fills the structure, which is a local variable.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    usage.ru_nvcsw as u64
}

#[test]
fn no_call_waits_for_a_process_that_is_stopped() {
    if !is_alone("no_call_waits_for_a_process_that_is_stopped") {
        return;
    }
    // A process without a connection.
    let mut other = start("unknown", &[]);
    let to = learn(&mut other.line).unwrap();
    other.stop();
    let mut waited = 0;
    for round in 0..PAIRS {
        let mut end = End::default();
        end.init();
        let before = waits();
        end.rtr(to.qpn);
        end.rts();
        end.send(&[SendWr::write(round, &[], to.addr, to.rkey)]);
        assert_eq!(end.poll(), None);
        waited += waits() - before;
    }
    assert!(waited < PAIRS, "{waited} waits of {PAIRS} pairs for a process that was never met");

    // A connected process: for a connection to another of its queue pairs, and for a region.
    let mut other = start("known", &[]);
    let (mut end, to) = connect(&mut other.line, QpCap::default()).unwrap();
    end.reach();
    let unknown = learn(&mut other.line).unwrap();
    other.stop();
    let sges = [end.sge(0, 8)];
    let before = waits();
    end.send(&[SendWr::write(1, &sges, to.addr, to.rkey).with_flags(SIGNALED)]);
    assert_eq!(end.poll(), None);
    let mut waited = waits() - before;
    for round in 0..PAIRS {
        let mut end = End::default();
        end.init();
        let before = waits();
        end.rtr(unknown.qpn);
        end.rts();
        end.send(&[SendWr::write(round, &[], unknown.addr, unknown.rkey)]);
        assert_eq!(end.poll(), None);
        waited += waits() - before;
    }
    assert!(waited < PAIRS, "{waited} waits of {PAIRS} pairs for a process that was met");
    other.signal(libc::SIGCONT);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
}

//! A process that does not answer, and is not wanted any more. One test, because it counts what the whole process
//! holds.

mod support;

use std::time::Instant;

use support::datagrams::Ud;
use support::holdings::Holdings;
use support::process::*;
use support::*;

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let there = Ud::new();
    line.say([there.qpn().into(), 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

#[test]
fn a_process_that_nobody_wants_to_meet_any_more_costs_nothing() {
    let mut other = start("silent", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    other.stop();
    let before = Holdings::at_rest();
    let mut here = Ud::new();
    here.send(qpn, QKEY, b"anybody there?");
    // The service thread turns to it: a socket, and the process's life.
    let (start, own) = (Instant::now(), Holdings::now().descriptors.len());
    let is_life = |descriptor: &String| descriptor.ends_with(&format!("Pid:\t{}", other.pid()));
    while !Holdings::now().descriptors.iter().any(is_life) {
        assert!(start.elapsed() < LOST, "nobody is asked, {own} descriptors");
        std::thread::yield_now();
    }
    drop(here);
    // As long as it lives, and does not answer.
    before.wait_for(|| ());
    assert_eq!(other.wait(), ProcessState::Stopped);
}

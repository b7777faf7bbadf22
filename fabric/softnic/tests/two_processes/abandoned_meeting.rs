//! A process that does not reply, and is no longer needed. The test runs in a process of its own, because it counts
//! resources of the entire process.

use std::time::Instant;

use crate::support::apart::is_alone;
use crate::support::datagrams::Ud;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let there = Ud::new();
    line.say([there.qpn().into(), 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

#[test]
fn releases_all_resources_of_an_abandoned_rendezvous() {
    if !is_alone("releases_all_resources_of_an_abandoned_rendezvous") {
        return;
    }
    let mut other = start("silent", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    other.stop();
    let before = Holdings::at_rest();
    let mut here = Ud::new();
    here.send(qpn, QKEY, b"anybody there?");
    // The service thread starts the handshake, which uses a socket and a pidfd.
    let (start, own) = (Instant::now(), Holdings::now().descriptors.len());
    let is_life = |descriptor: &String| descriptor.ends_with(&format!("Pid:\t{}", other.pid()));
    while !Holdings::now().descriptors.iter().any(is_life) {
        assert!(start.elapsed() < LOST, "nobody is asked, {own} descriptors");
        std::thread::yield_now();
    }
    drop(here);
    // While the process exists and does not reply.
    before.wait_for(|| ());
    assert_eq!(other.wait(), ProcessState::Stopped);
}

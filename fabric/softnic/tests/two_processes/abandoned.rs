//! Replies that arrive after their requester has gone. The test runs in a process of its own, because it counts
//! resources of the entire process.

use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let _ends: Vec<_> = (0..2).map(|_| connect(&mut line, QpCap::default()).unwrap()).collect();
    line.say([1, 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

#[test]
fn closes_descriptors_of_a_reply_to_an_abandoned_request() {
    if !is_alone("closes_descriptors_of_a_reply_to_an_abandoned_request") {
        return;
    }
    let mut other = start("two", &[]);
    let (mut first, to_first) = connect(&mut other.line, QpCap::default()).unwrap();
    let (mut second, to_second) = connect(&mut other.line, QpCap::default()).unwrap();
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    let write = |end: &mut End, to: Address, len: usize| {
        let sges = [end.sge(0, len)];
        end.send(&[SendWr::write(1, &sges, to.addr, to.rkey).with_flags(SIGNALED)]);
    };
    // Both are certainly connected; only the regions are not granted yet.
    write(&mut first, to_first, 0);
    write(&mut second, to_second, 0);
    assert_eq!((first.wait().status, second.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    other.stop();
    write(&mut first, to_first, 8);
    assert_eq!(first.poll(), None, "the region is not granted while the peer is stopped");
    drop(first.qp);
    let before = Holdings::now();
    other.signal(libc::SIGCONT);
    // It uses the same socket, so the reply to the first request arrives before the reply to this one.
    write(&mut second, to_second, 8);
    assert_eq!(second.wait().status, WcStatus::SUCCESS);
    // The region granted to the second stays mapped.
    before.wait_for_about((0, 1), || ());
}

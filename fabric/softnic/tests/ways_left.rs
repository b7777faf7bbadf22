//! What a sender of datagrams keeps of processes that ended. One test, because it counts what the whole process holds.

mod support;

use support::datagrams::Ud;
use support::holdings::Holdings;
use support::process::*;
use support::*;

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let mut b = Ud::new();
    b.recv(0, 8);
    line.say([b.qpn().into(), 0, 0, 0]);
    b.take();
    line.say([1, 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

/// Sends a datagram to a process, which takes it and ends.
fn reach(a: &mut Ud) {
    let mut other = start("taker", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    a.send(qpn, QKEY, &[7; 8]);
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    other.end();
}

#[test]
fn ways_to_processes_that_ended_are_given_back_when_another_way_is_sought() {
    let mut a = Ud::new();
    drop(Holdings::at_rest());
    reach(&mut a);
    let before = Holdings::now();
    (0..10).for_each(|_| reach(&mut a));
    // A way is more than one descriptor, and the last ones may not be known to lead nowhere.
    before.wait_for_about((6, 6), || reach(&mut a));
}

//! Resources of a datagram sender for processes that have exited. A single test, because it counts resources of the
//! entire process.

use crate::support::apart::is_alone;
use crate::support::datagrams::Ud;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;

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

/// Sends a datagram to a process, which receives it and exits.
fn reach(a: &mut Ud) {
    let mut other = start("taker", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    a.send(qpn, QKEY, &[7; 8]);
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    other.end();
}

#[test]
fn frees_paths_to_exited_processes_when_another_is_opened() {
    if !is_alone("frees_paths_to_exited_processes_when_another_is_opened") {
        return;
    }
    let mut a = Ud::new();
    drop(Holdings::at_rest());
    reach(&mut a);
    let before = Holdings::now();
    (0..10).for_each(|_| reach(&mut a));
    // A ring uses more than one descriptor, and the last rings may not be known to be unusable yet.
    before.wait_for_about((6, 6), || reach(&mut a));
}

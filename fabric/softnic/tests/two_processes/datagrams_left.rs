//! Resources left by processes that sent datagrams and exited. The test runs in a process of its own, because it counts
//! resources of the entire process.

use crate::support::apart::is_alone;
use crate::support::datagrams::Ud;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;

#[test]
fn child_entry() {
    let Some((_, args, mut line)) = role() else { return };
    sender(&mut line, args[0] as u32, args[1]);
    std::process::exit(0);
}

/// Sends `count` numbered datagrams to a queue pair, from a queue pair each, whenever requested, and reports it.
fn sender(line: &mut Line, qpn: u32, count: u64) {
    let mut ends: Vec<Ud> = (0..count).map(|_| Ud::new()).collect();
    loop {
        for (i, a) in ends.iter_mut().enumerate() {
            a.send(qpn, QKEY, &(i as u64).to_le_bytes());
        }
        line.say([1, 0, 0, 0]);
        if line.hear().is_none() {
            return;
        }
    }
}

#[test]
fn delivers_datagrams_of_an_exited_process_and_frees_its_rings() {
    if !is_alone("delivers_datagrams_of_an_exited_process_and_frees_its_rings") {
        return;
    }
    const SENDERS: u64 = 20;
    let mut b = Ud::new();
    for i in 0..SENDERS {
        b.recv(i, 8);
    }
    let before = Holdings::at_rest();
    let take_all = |b: &mut Ud| {
        let mut got: Vec<u64> = Vec::new();
        for _ in 0..SENDERS {
            let (wc, bytes) = b.take();
            got.push(u64::from_le_bytes(bytes.try_into().unwrap()));
            b.recv(wc.wr_id, 8);
        }
        got.sort_unstable();
        assert_eq!(got, (0..SENDERS).collect::<Vec<_>>());
    };
    for _ in 0..3 {
        let mut other = start("sender", &[b.qpn().into(), SENDERS]);
        assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
        // The rings are granted by now, so the next datagrams are in the rings when the sender reports them.
        take_all(&mut b);
        other.line.say([0; 4]);
        assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
        other.end();
        drop(other);
        take_all(&mut b);
    }
    // The next new sender triggers the release of what could not be released at the process exit, because it was not
    // read yet.
    let mut a = Ud::new();
    a.send(b.qpn(), QKEY, &7_u64.to_le_bytes());
    assert_eq!(b.take().1, 7_u64.to_le_bytes());
    drop(a);
    // One ring of the new sender may remain, and none of the exited process.
    before.wait_for_about((0, 1), || ());
}

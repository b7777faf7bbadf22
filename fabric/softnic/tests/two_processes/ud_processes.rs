//! Datagrams between processes, one of which may be stopped or have exited.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::support::datagrams::{GRH, Ud, arrives, slot};
use crate::support::process::{Line, role, start};
use crate::support::*;
use farcall_verbs::{AhAttr, Notify, QpCap, SendWr, UdTarget, WcOpcode, WcStatus};

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    match role.as_str() {
        "receiver" => receiver(&mut line),
        "taker" => taker(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

/// Receives datagrams and responds to the source of each.
fn receiver(line: &mut Line) {
    let mut b = Ud::new();
    for i in 0..64 {
        b.recv(i, 1024);
    }
    line.say([b.qpn().into(), 0, 0, 0]);
    let mut came = VecDeque::new();
    loop {
        let wc = came.pop_front().unwrap_or_else(|| b.end.sleep(Notify::Any));
        let header = b.end.get(slot(wc.wr_id), GRH).try_into().unwrap();
        let back = AhAttr::from_received(&wc, &header, 1).unwrap();
        let ah = b.end.pd.create_ah(&back).unwrap();
        let to = UdTarget { ah: ah.as_raw(), remote_qpn: wc.src_qp, remote_qkey: QKEY };
        let sges = [b.end.sge(slot(wc.wr_id) + GRH, wc.byte_len as usize - GRH)];
        b.end.send(&[SendWr::send_to(1, &sges, to).with_flags(SIGNALED)]);
        // The response may have to wait for a ring, while more datagrams arrive.
        while let Some(other) = Some(b.end.wait()).filter(|wc| wc.opcode != WcOpcode::SEND) {
            came.push_back(other);
        }
        b.recv(wc.wr_id, 1024);
    }
}

/// Number and length in bytes of datagrams that together exceed the capacity of a ring.
const EARLY: u64 = 16;
const EARLY_BYTES: usize = 4096;

/// Receives `EARLY` datagrams in order.
fn taker(line: &mut Line) {
    let mut b = Ud::with(QpCap { max_recv_wr: EARLY as u32, ..QpCap::default() });
    (0..EARLY).for_each(|wr_id| b.recv(wr_id, EARLY_BYTES));
    line.say([b.qpn().into(), 0, 0, 0]);
    for number in 0..EARLY {
        assert_eq!(b.take().1, vec![number as u8; EARLY_BYTES]);
    }
    line.say([EARLY, 0, 0, 0]);
    line.hear();
}

/// Their sender does nothing more: only the service thread can send the datagrams for which the ring had no space at
/// first.
#[test]
fn delivers_all_datagrams_sent_before_the_route_was_known() {
    let mut other = start("taker", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    other.stop();
    let mut a = Ud::new();
    (0..EARLY).for_each(|number| a.send(qpn, QKEY, &[number as u8; EARLY_BYTES]));
    other.signal(libc::SIGCONT);
    assert_eq!(other.line.hear(), Some([EARLY, 0, 0, 0]));
}

/// Only the destination's process can grant a ring, and it may have to wait to be scheduled.
#[test]
fn the_way_to_a_destination_is_waited_for() {
    const COUNT: u64 = 40;
    let mut other = start("receiver", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    other.stop();
    let mut a = Ud::new();
    let (sges, to) = ([a.end.sge(0, 8)], a.to(qpn, QKEY));
    for wr_id in 0..COUNT {
        a.recv(wr_id, 8);
        a.end.send(&[SendWr::send_to(1000, &sges, to).with_flags(SIGNALED)]);
    }
    // Not all of these are stored outside the send queue.
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        while a.end.poll().is_some() {
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(sent < COUNT, "dropped, or taken to have arrived");
    other.signal(libc::SIGCONT);
    let mut back = 0;
    while back < COUNT || sent < COUNT {
        let wc = a.end.wait();
        assert_eq!(wc.status, WcStatus::SUCCESS);
        if wc.opcode == WcOpcode::RECV {
            back += 1;
        } else {
            sent += 1;
        }
    }
}

#[test]
fn another_process_answers_to_where_a_datagram_came_from() {
    let mut other = start("receiver", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    let mut a = Ud::new();
    for i in 0..200_u64 {
        let data = bytes(1 + i as usize * 5, i);
        a.recv(i, 1024);
        a.send(qpn, QKEY, &data);
        let wc = a.end.sleep(Notify::Any);
        assert_eq!((wc.src_qp, a.payload(&wc)), (qpn, data));
    }
}

#[test]
fn a_stopped_or_dead_destination_is_no_error() {
    let mut other = start("receiver", &[]);
    let qpn = other.line.hear().unwrap()[0] as u32;
    let mut a = Ud::new();
    a.recv(1, 1024);
    a.send(qpn, QKEY, b"known");
    assert_eq!(a.take().1, b"known");
    other.stop();
    for _ in 0..1000 {
        a.send(qpn, QKEY, b"to one that is stopped");
    }
    // A queue pair without a ring to the stopped process: no ring can be granted now.
    let mut fresh = Ud::new();
    for _ in 0..1000 {
        fresh.send(qpn, QKEY, b"from one unknown");
    }
    other.end();
    for sender in [&mut a, &mut fresh] {
        for _ in 0..1000 {
            sender.send(qpn, QKEY, b"to one that is dead");
        }
        let mut b = Ud::new();
        arrives(sender, &mut b, b"others are reached as ever");
    }
}

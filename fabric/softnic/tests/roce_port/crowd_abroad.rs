//! Many connected queue pairs of two processes over RoCEv2: each receives its own messages, and all of them use bounded
//! memory. The test runs in a network namespace of its own, where the port is free.

use std::collections::HashMap;

use crate::support::apart::is_apart;
use crate::support::process::{Other, role, start};
use crate::support::*;
use farcall_verbs::{Mtu, QpAttr, QpCap, QpType, RawQp, RecvWr, SendWr, Sge, Wc, WcOpcode, WcStatus};

const PAIRS: usize = 1_000;
/// Length of a message in bytes: more than a packet of the MTU holds.
const LEN_BYTES: usize = 1_500;
const ROUNDS: u64 = 3;
/// Maximum memory of this process that a queue pair may use, including its two buffers.
const PAIR_BYTES_MAX: u64 = 32 << 10;

/// Queue pairs of a process at one completion queue. Each has a send buffer and a receive buffer.
struct Crowd {
    end: End,
    qps: Vec<Box<dyn RawQp>>,
    place: HashMap<u32, usize>,
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

impl Crowd {
    fn new() -> Self {
        let end = End::new(2 * PAIRS * LEN_BYTES, ALL, QpCap::default());
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let qps: Vec<_> =
            (0..PAIRS).map(|_| create_qp(&*end.pd, (&*end.cq, &*end.cq), None, cap, QpType::Rc)).collect();
        let place = qps.iter().enumerate().map(|(at, qp)| (qp.qp_num(), at)).collect();
        Self { end, qps, place }
    }

    fn sent(&self, at: usize) -> Sge {
        self.end.sge(2 * at * LEN_BYTES, LEN_BYTES)
    }

    fn received(&self, at: usize) -> Sge {
        self.end.sge((2 * at + 1) * LEN_BYTES, LEN_BYTES)
    }

    fn connect(&mut self, at: usize, dest: u32) {
        let (path, into) = (self.end.path(), [self.received(at)]);
        let qp = &mut self.qps[at];
        for attr in [QpAttr::init(ALL), QpAttr::rtr(dest, 0, path, Mtu::Mtu1024), patient()] {
            qp.modify(&attr).unwrap();
        }
        // SAFETY: the region outlives the queue pairs.
        unsafe { qp.post_recv(&[RecvWr::new(0, &into)]) }.unwrap();
    }

    fn send(&mut self, at: usize, message: &[u8]) {
        self.end.put(2 * at * LEN_BYTES, message);
        let from = [self.sent(at)];
        // SAFETY: the region outlives the queue pairs.
        unsafe { self.qps[at].post_send(&[SendWr::send(0, &from)]) }.unwrap();
    }

    /// Returns the next message and the index of its queue pair.
    fn take(&mut self) -> (usize, Vec<u8>) {
        let Wc { status, opcode, byte_len, qp_num, .. } = self.end.wait();
        assert_eq!((status, opcode, byte_len as usize), (WcStatus::SUCCESS, WcOpcode::RECV, LEN_BYTES));
        let at = self.place[&qp_num];
        let message = self.end.get((2 * at + 1) * LEN_BYTES, LEN_BYTES);
        let into = [self.received(at)];
        // SAFETY: the region outlives the queue pairs.
        unsafe { self.qps[at].post_recv(&[RecvWr::new(0, &into)]) }.unwrap();
        (at, message)
    }
}

/// Returns the message that a queue pair sends in a round; the response differs from the request.
fn message(at: usize, round: u64, is_answer: bool) -> Vec<u8> {
    bytes(LEN_BYTES, (round * PAIRS as u64 + at as u64) * 2 + u64::from(is_answer))
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let before_bytes = resident_bytes();
    let mut crowd = Crowd::new();
    for at in 0..PAIRS {
        let [dest, ..] = line.hear().unwrap();
        crowd.connect(at, dest as u32);
        line.say([crowd.qps[at].qp_num().into(), 0, 0, 0]);
    }
    for round in 0..ROUNDS {
        for _ in 0..PAIRS {
            let (at, got) = crowd.take();
            assert!(got == message(at, round, false), "pair {at}, round {round}");
            crowd.send(at, &message(at, round, true));
        }
    }
    line.say([resident_bytes() - before_bytes, 0, 0, 0]);
    // Waits until all of its responses have arrived.
    while line.hear().is_some() {}
}

#[test]
fn a_thousand_pairs_exchange_messages_with_another_process() {
    if !is_apart("a_thousand_pairs_exchange_messages_with_another_process", "roce") {
        return;
    }
    let mut other: Other = start("crowd", &[]);
    let before_bytes = resident_bytes();
    let mut crowd = Crowd::new();
    for at in 0..PAIRS {
        other.line.say([crowd.qps[at].qp_num().into(), 0, 0, 0]);
        let [dest, ..] = other.line.hear().unwrap();
        crowd.connect(at, dest as u32);
    }
    for round in 0..ROUNDS {
        (0..PAIRS).for_each(|at| crowd.send(at, &message(at, round, false)));
        let mut missing = vec![true; PAIRS];
        for _ in 0..PAIRS {
            let (at, got) = crowd.take();
            assert!(std::mem::take(&mut missing[at]), "pair {at} in round {round} twice");
            assert!(got == message(at, round, true), "pair {at}, round {round}");
        }
    }
    let [their_bytes, ..] = other.line.hear().unwrap();
    for taken_bytes in [resident_bytes() - before_bytes, their_bytes] {
        assert!(taken_bytes < PAIRS as u64 * PAIR_BYTES_MAX, "{taken_bytes} bytes of {PAIRS} pairs");
    }
}

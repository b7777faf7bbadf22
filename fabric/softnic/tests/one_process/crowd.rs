//! Many queue pairs at one completion queue: polling is fair and complete, and idle ones are found again after their
//! bits were cleared. `FARCALL_TEST_CROWD` sets another number of queue pairs; each uses two file descriptors here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::support::apart::is_alone;
use crate::support::*;
use farcall_verbs::{CqInitAttr, QpCap, QpType, RawQp, RecvWr, SendWr, Wc};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of posted receives of each queue pair.
const RECEIVES: u32 = 4;

/// Number of empty polls after which the bits of idle queue pairs have certainly been cleared.
const QUIET: u64 = 1100;

struct Crowd {
    a: End,
    b: End,
    senders: Vec<Box<dyn RawQp>>,
    receivers: Vec<Box<dyn RawQp>>,
    /// Index of a receiver in `receivers`, by queue pair number.
    place: HashMap<u32, usize>,
}

/// Returns an end whose completion queue has no channel, because a channel would use two more descriptors per queue
/// pair.
fn end() -> End {
    let mut end = End::default();
    end.cq = end.context.create_cq(&CqInitAttr { cqe: 4096, channel: None }).unwrap();
    end.qp = new_qp(&end);
    end
}

fn new_qp(end: &End) -> Box<dyn RawQp> {
    let cap = QpCap { max_recv_wr: RECEIVES, max_send_wr: 8, ..QpCap::default() };
    create_qp(&*end.pd, (&*end.cq, &*end.cq), None, cap, QpType::Rc)
}

fn receive(qp: &mut dyn RawQp) {
    // SAFETY: no memory is named.
    unsafe { qp.post_recv(&[RecvWr::new(0, &[])]) }.unwrap();
}

fn send(qp: &mut dyn RawQp, imm: u32) {
    // SAFETY: no memory is named.
    unsafe { qp.post_send(&[SendWr::send(0, &[]).with_imm(imm)]) }.unwrap();
}

impl Crowd {
    fn new() -> Self {
        let n = std::env::var("FARCALL_TEST_CROWD").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
        let (mut a, mut b) = (end(), end());
        let (mut senders, mut receivers, mut place) = (Vec::new(), Vec::new(), HashMap::new());
        for i in 0..n {
            join(&mut a, &mut b, End::rts);
            (0..RECEIVES).for_each(|_| receive(&mut *b.qp));
            place.insert(b.qp.qp_num(), i);
            let (fresh_a, fresh_b) = (new_qp(&a), new_qp(&b));
            senders.push(std::mem::replace(&mut a.qp, fresh_a));
            receivers.push(std::mem::replace(&mut b.qp, fresh_b));
        }
        let mut crowd = Self { a, b, senders, receivers, place };
        // A first message may have to wait for its peer. Later messages are delivered when they are posted.
        crowd.senders.iter_mut().for_each(|qp| send(&mut **qp, 0));
        for _ in 0..n {
            let qpn = crowd.wait().qp_num;
            let at = crowd.place[&qpn];
            receive(&mut *crowd.receivers[at]);
        }
        crowd
    }

    /// Returns the next message. Polls both ends, because a sender whose peer did not reply immediately continues in a
    /// poll.
    fn wait(&mut self) -> Wc {
        let start = Instant::now();
        loop {
            assert_eq!(self.a.poll(), None, "no send is signalled");
            if let Some(wc) = self.b.poll() {
                return wc;
            }
            assert!(start.elapsed() < LOST, "a message was lost");
        }
    }
}

#[test]
fn serves_every_pair_once_before_any_twice() {
    if !is_alone("serves_every_pair_once_before_any_twice") {
        return;
    }
    let mut crowd = Crowd::new();
    for round in 0..RECEIVES {
        crowd.senders.iter_mut().for_each(|qp| send(&mut **qp, round));
    }
    for round in 0..RECEIVES {
        let mut served = vec![false; crowd.receivers.len()];
        for _ in 0..served.len() {
            // One at a time, because the number of completions per poll is unspecified.
            let wc = crowd.wait();
            let at = crowd.place[&wc.qp_num];
            assert_eq!((wc.imm(), std::mem::replace(&mut served[at], true)), (Some(round), false));
        }
    }
    assert_eq!(crowd.b.poll(), None);
}

#[test]
fn a_quiet_crowd_is_found_again() {
    if !is_alone("a_quiet_crowd_is_found_again") {
        return;
    }
    let mut crowd = Crowd::new();
    for _ in 0..2 {
        for at in 0..crowd.receivers.len() {
            if at % 100 == 0 {
                (0..QUIET).for_each(|_| assert_eq!(crowd.b.poll(), None));
            }
            send(&mut *crowd.senders[at], at as u32);
            let wc = crowd.wait();
            assert_eq!((crowd.place[&wc.qp_num], wc.imm()), (at, Some(at as u32)));
            receive(&mut *crowd.receivers[at]);
        }
    }
}

/// Messages arrive while the queue clears the bits of idle queue pairs.
#[test]
fn nothing_is_lost_while_promises_are_withdrawn() {
    if !is_alone("nothing_is_lost_while_promises_are_withdrawn") {
        return;
    }
    const SEED: u64 = 0x0C20_77D0;
    const TOTAL: u32 = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    println!("seed {SEED:#x}");
    let Crowd { mut a, mut b, mut senders, mut receivers, place } = Crowd::new();
    let (taken, polls) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let sender = {
        let (taken, polls) = (taken.clone(), polls.clone());
        std::thread::spawn(move || {
            let mut rng = ChaCha8Rng::seed_from_u64(SEED);
            let mut sent = vec![0_u32; senders.len()];
            for total in 0..TOTAL {
                // At intervals the receiver becomes idle. The next message arrives at about the time when the bits are
                // cleared.
                let quiet = if total % 100 == 0 { rng.random_range(0..QUIET) } else { 0 };
                let (start, since) = (Instant::now(), polls.load(Relaxed));
                while total - taken.load(Relaxed) >= RECEIVES || polls.load(Relaxed) - since < quiet {
                    assert!(
                        start.elapsed() < LOST,
                        "message {} was lost, seed {SEED:#x}",
                        taken.load(Relaxed)
                    );
                    assert_eq!(a.poll(), None);
                    std::thread::yield_now();
                }
                let at = rng.random_range(0..senders.len());
                send(&mut *senders[at], sent[at]);
                sent[at] += 1;
            }
            (a, senders, sent)
        })
    };
    let (mut got, mut wc, mut last) = (vec![0_u32; receivers.len()], [Wc::default(); 16], Instant::now());
    while taken.load(Relaxed) < TOTAL {
        let n = b.cq.poll(&mut wc).unwrap();
        polls.fetch_add(1, Relaxed);
        for wc in &wc[..n] {
            let at = place[&wc.qp_num];
            assert_eq!((wc.status.is_success(), wc.imm()), (true, Some(got[at])));
            got[at] += 1;
            receive(&mut *receivers[at]);
        }
        taken.fetch_add(n as u32, Relaxed);
        if n > 0 {
            last = Instant::now();
        }
        assert!(last.elapsed() < 2 * LOST, "a message was lost, seed {SEED:#x}");
    }
    let (_a, _senders, sent) = sender.join().unwrap();
    assert_eq!(got, sent);
}

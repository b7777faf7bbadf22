//! Random process exits under load: several peers with several queue pairs each, and one completion queue for all of
//! them.
//!
//! 200 exits in release, 20 in debug. `FARCALL_TEST_SEED` repeats a run's random choices, `FARCALL_TEST_KILLS` sets the
//! number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{
    Context, CqInitAttr, Mtu, ProtectionDomain, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawMr,
    RawQp, RecvWr, SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use rand::{RngExt, SeedableRng};

const WORKERS: usize = 3;
const PAIRS: usize = 2;
const SLOT: usize = 8 << 10;
const RECEIVES: u64 = 8;
const SENDS: u64 = 8;

fn len_of(seq: u64) -> usize {
    [24, 1000, 5000][seq as usize % 3]
}

/// A queue pair with its memory, and the two streams over it: one sent, one received.
struct Stream {
    qp: Box<dyn RawQp>,
    mr: Box<dyn RawMr>,
    sent: u64,
    ended: u64,
    posted: u64,
    received: u64,
    failed: bool,
}

impl Stream {
    fn new(pd: &dyn ProtectionDomain, cq: &dyn RawCq) -> Self {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 8, ..QpCap::default() };
        let attr =
            QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap, qp_type: QpType::Rc, sq_sig_all: true };
        let mut qp = pd.create_qp(&attr).unwrap();
        qp.modify(&QpAttr::init(ALL)).unwrap();
        let mr = pd.alloc_mr(2 * SLOT * 8, ALL).unwrap();
        Self { qp, mr, sent: 0, ended: 0, posted: 0, received: 0, failed: false }
    }

    /// Returns `false` if the peer has exited already.
    fn connect(&mut self, context: &dyn Context, dest: u32) -> bool {
        let path = farcall_verbs::AhAttr {
            dgid: context.query_gid(1, 0).unwrap(),
            port_num: 1,
            ..farcall_verbs::AhAttr::default()
        };
        if self.qp.modify(&QpAttr::rtr(dest, 0, path, Mtu::Mtu4096)).is_err() {
            return false;
        }
        self.qp.modify(&QpAttr::rts(0)).unwrap();
        true
    }

    fn sge(&self, slot: u64, len: usize) -> Sge {
        Sge { addr: self.mr.addr() as u64 + slot * SLOT as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Keeps receives posted and sends outstanding.
    fn fill(&mut self) {
        if self.qp.state() != QpState::Rts {
            return;
        }
        while self.posted < self.received + RECEIVES {
            let into = [self.sge(self.posted % 8, SLOT)];
            // SAFETY: the region outlives the queue pair.
            unsafe { self.qp.post_recv(&[RecvWr::new(self.posted, &into)]) }.unwrap();
            self.posted += 1;
        }
        while self.sent < self.ended + SENDS && self.qp.state() == QpState::Rts {
            let (slot, data) = (8 + self.sent % 8, bytes(len_of(self.sent), self.sent));
            let from = [self.sge(slot, data.len())];
            // SAFETY: the slot is inside the region, and the send that used it has completed.
            unsafe {
                let at = self.mr.addr().add(slot as usize * SLOT);
                at.copy_from_nonoverlapping(data.as_ptr(), data.len());
                self.qp.post_send(&[SendWr::send(self.sent, &from)]).unwrap();
            }
            self.sent += 1;
        }
    }

    /// Returns whether the queue pair has failed and all requests posted to it have completed.
    fn is_over(&self) -> bool {
        self.failed && self.ended == self.sent && self.received == self.posted
    }

    fn take(&mut self, wc: &Wc) {
        if wc.status.is_success() && wc.opcode == WcOpcode::RECV {
            assert_eq!((wc.wr_id, wc.byte_len as usize), (self.received, len_of(self.received)));
            let mut got = vec![0; wc.byte_len as usize];
            // SAFETY: the slot is inside the region, and its receive has completed.
            unsafe {
                let at = self.mr.addr().add((wc.wr_id % 8) as usize * SLOT);
                at.copy_to_nonoverlapping(got.as_mut_ptr(), got.len());
            }
            assert!(got == bytes(got.len(), wc.wr_id), "message {} is corrupt", wc.wr_id);
            self.received += 1;
        } else if wc.status.is_success() {
            assert_eq!(wc.wr_id, self.ended);
            self.ended += 1;
        } else {
            assert!(matches!(wc.status, WcStatus::RETRY_EXC_ERR | WcStatus::WR_FLUSH_ERR), "{wc:?}");
            self.failed = true;
            // Failed requests complete once and in order, too.
            let next = if wc.opcode == WcOpcode::RECV { &mut self.received } else { &mut self.ended };
            assert_eq!(wc.wr_id, *next, "{wc:?}");
            *next += 1;
        }
    }
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let context = farcall_softnic::SoftNic::open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
    let mut streams: Vec<Stream> = (0..PAIRS).map(|_| Stream::new(&*pd, &*cq)).collect();
    for stream in &mut streams {
        line.say([stream.qp.qp_num().into(), 0, 0, 0]);
        let to = line.hear().unwrap()[0] as u32;
        assert!(stream.connect(&*context, to));
    }
    let mut wc = [Wc::default(); 16];
    loop {
        streams.iter_mut().for_each(Stream::fill);
        let n = cq.poll(&mut wc).unwrap();
        for wc in &wc[..n] {
            let stream = streams.iter_mut().find(|s| s.qp.qp_num() == wc.qp_num).unwrap();
            stream.take(wc);
            assert!(!stream.failed, "the survivor failed");
        }
        if n == 0 {
            std::thread::yield_now();
        }
    }
}

struct Worker {
    other: Other,
    streams: Vec<u32>,
}

/// The process that survives.
struct Hub {
    context: std::sync::Arc<dyn Context>,
    pd: std::sync::Arc<dyn ProtectionDomain>,
    cq: Box<dyn RawCq>,
    streams: HashMap<u32, Stream>,
    taken: u64,
}

impl Hub {
    fn hire(&mut self) -> Worker {
        let mut other = start("worker", &[]);
        let mut numbers = Vec::new();
        for _ in 0..PAIRS {
            let mut stream = Stream::new(&*self.pd, &*self.cq);
            let theirs = other.line.hear().expect("a new worker speaks")[0] as u32;
            other.line.say([stream.qp.qp_num().into(), 0, 0, 0]);
            assert!(stream.connect(&*self.context, theirs));
            numbers.push(stream.qp.qp_num());
            self.streams.insert(stream.qp.qp_num(), stream);
        }
        Worker { other, streams: numbers }
    }

    fn turn(&mut self) {
        self.streams.values_mut().for_each(Stream::fill);
        let mut wc = [Wc::default(); 32];
        let n = self.cq.poll(&mut wc).unwrap();
        for wc in &wc[..n] {
            let stream = self.streams.get_mut(&wc.qp_num).expect("completions of live queue pairs only");
            stream.take(wc);
            self.taken += 1;
        }
        if n == 0 {
            std::thread::yield_now();
        }
    }

    /// Continues until all streams of an exited worker have failed, and no others. Returns the time that it took.
    fn bury(&mut self, dead: &Worker) -> Duration {
        let start = Instant::now();
        while !dead.streams.iter().all(|qpn| self.streams[qpn].is_over()) {
            assert!(start.elapsed() < LOST, "a death was not noticed, or something posted never ended");
            self.turn();
        }
        let took = start.elapsed();
        for (qpn, stream) in &self.streams {
            assert!(!stream.failed || dead.streams.contains(qpn), "a death hurt another's queue pair");
        }
        for qpn in &dead.streams {
            let stream = self.streams.remove(qpn).unwrap();
            assert_eq!(stream.qp.state(), QpState::Err);
        }
        took
    }
}

#[test]
fn continues_after_random_crashes() {
    if !is_alone("continues_after_random_crashes") {
        return;
    }
    let seed = number("FARCALL_TEST_SEED").unwrap_or(1);
    let kills = number("FARCALL_TEST_KILLS").unwrap_or(if cfg!(debug_assertions) { 20 } else { 200 });
    println!("FARCALL_TEST_SEED={seed} FARCALL_TEST_KILLS={kills}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let context = farcall_softnic::SoftNic::open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
    let mut hub = Hub { context, pd, cq, streams: HashMap::new(), taken: 0 };
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| hub.hire()).collect();
    let (before, mut worst) = (Holdings::now(), Duration::ZERO);
    for _ in 0..kills {
        let turns = rng.random_range(0..400);
        (0..turns).for_each(|_| hub.turn());
        let victim = workers.swap_remove(rng.random_range(0..workers.len()));
        victim.other.kill();
        worst = worst.max(hub.bury(&victim));
        drop(victim);
        workers.push(hub.hire());
    }
    let goal = hub.taken + 1000;
    let start = Instant::now();
    while hub.taken < goal {
        assert!(start.elapsed() < LOST, "survivors stand still");
        hub.turn();
    }
    println!("{} completions; all of a dead peer's had ended at most {worst:?} after the kill", hub.taken);
    // At `before` not all regions of the first workers were mapped yet.
    before.wait_for_about((8, 4 * WORKERS * PAIRS), || hub.turn());
}

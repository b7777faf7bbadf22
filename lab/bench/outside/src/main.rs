//! Posts and polls `COUNT` messages of a kind between two queue pairs of this process, or makes calls.
//! `instructions.py` runs it under callgrind and reads the number of instructions that each of the functions below
//! executed.

mod calls;

use std::hint::black_box;
use std::sync::Arc;

use farcall_softnic::SoftNic;
use farcall_verbs::{
    Access, AhAttr, AtomicTarget, CompChannel, Context, CqInitAttr, Mtu, ProtectionDomain, Provider, QpAttr,
    QpCap, QpInitAttr, QpType, RawCq, RawMr, RawQp, RecvWr, SendFlags, SendWr, Sge, Wc, WcStatus, WrOpcode,
};

const CHAIN: usize = 16;

struct End {
    _context: Arc<dyn Context>,
    _pd: Arc<dyn ProtectionDomain>,
    _channel: Arc<dyn CompChannel>,
    cq: Box<dyn RawCq>,
    qp: Box<dyn RawQp>,
    mr: Box<dyn RawMr>,
    path: AhAttr,
}

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl End {
    fn new() -> Self {
        let context = SoftNic::new().devices().unwrap()[0].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(&CqInitAttr { cqe: 256, channel: Some(&*channel) }).unwrap();
        let attr = QpInitAttr {
            send_cq: &*cq,
            recv_cq: &*cq,
            srq: None,
            cap: QpCap::default(),
            qp_type: QpType::Rc,
            sq_sig_all: false,
        };
        let qp = pd.create_qp(&attr).unwrap();
        let mr = pd.alloc_mr(1 << 16, ALL).unwrap();
        let path = AhAttr { dgid: context.query_gid(1, 0).unwrap(), port_num: 1, ..AhAttr::default() };
        Self { _context: context, _pd: pd, _channel: channel, cq, qp, mr, path }
    }

    fn connect(&mut self, qp_num: u32) {
        for attr in [QpAttr::init(ALL), QpAttr::rtr(qp_num, 0, self.path, Mtu::Mtu4096), QpAttr::rts(0)] {
            self.qp.modify(&attr).unwrap();
        }
    }

    fn sge(&self, len_bytes: u32) -> Sge {
        Sge { addr: self.mr.addr() as u64, length: len_bytes, lkey: self.mr.lkey() }
    }

    /// Polls until `count` requests have completed.
    fn wait(&mut self, count: usize, poll: fn(&mut dyn RawCq, &mut [Wc]) -> usize) {
        let mut wc = [Wc::default(); CHAIN];
        let mut taken = 0;
        while taken < count {
            let n = poll(&mut *self.cq, &mut wc[..count - taken]);
            assert!(wc[..n].iter().all(|wc| wc.status == WcStatus::SUCCESS));
            taken += n;
        }
    }
}

// The counted functions, which callgrind identifies by name.

#[inline(never)]
fn count_post_send(qp: &mut dyn RawQp, wrs: &[SendWr<'_>]) {
    // SAFETY: the requests name memory of the regions of the two `End`s in `run`. An `End` drops its queue pair before its
    // region. No code accesses that memory directly.
    unsafe { qp.post_send(black_box(wrs)) }.unwrap();
}

#[inline(never)]
fn count_post_recv(qp: &mut dyn RawQp, wrs: &[RecvWr<'_>]) {
    // SAFETY: the receives name memory of the regions of the two `End`s in `run`. An `End` drops its queue pair before its
    // region. No code accesses that memory directly.
    unsafe { qp.post_recv(black_box(wrs)) }.unwrap();
}

#[inline(never)]
fn count_poll_sender(cq: &mut dyn RawCq, wc: &mut [Wc]) -> usize {
    cq.poll(black_box(wc)).unwrap()
}

#[inline(never)]
fn count_poll_receiver(cq: &mut dyn RawCq, wc: &mut [Wc]) -> usize {
    cq.poll(black_box(wc)).unwrap()
}

#[inline(never)]
fn count_poll_empty(cq: &mut dyn RawCq, wc: &mut [Wc]) -> usize {
    cq.poll(black_box(wc)).unwrap()
}

/// Posts `count` messages in chains of `chain`, of which the last message is signalled.
fn run(kind: &str, count: usize) {
    let (mut a, mut b) = (End::new(), End::new());
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    let (addr, rkey) = (b.mr.addr() as u64, b.mr.rkey());
    let (sges, into) = ([a.sge(if kind.ends_with('8') { 8 } else { 64 })], [b.sge(64)]);
    let (wr, chain) = match kind {
        "send64" => (SendWr::send(0, &sges), 1),
        "write8" => (SendWr::write(0, &sges, addr, rkey), 1),
        "read64" => (SendWr::read(0, &sges, addr, rkey), 1),
        "faa8" => {
            let word = AtomicTarget { remote_addr: addr, rkey, compare_add: 1, swap: 0 };
            (SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 0, &sges, word), 1)
        }
        "chain" | "empty" => (SendWr::send(0, &sges), CHAIN),
        "chain-write8" => (SendWr::write(0, &sges, addr, rkey), CHAIN),
        _ => panic!("unknown kind {kind}"),
    };
    let mut wrs = [wr; CHAIN];
    wrs[chain - 1] = wr.with_flags(SendFlags::SIGNALED);
    let recvs = [RecvWr::new(0, &into); CHAIN];
    let is_send = matches!(kind, "send64" | "chain" | "empty");
    for _ in 0..count / chain {
        if is_send {
            count_post_recv(&mut *b.qp, &recvs[..chain]);
        }
        count_post_send(&mut *a.qp, &wrs[..chain]);
        if is_send {
            b.wait(chain, count_poll_receiver);
        }
        a.wait(1, count_poll_sender);
    }
    if kind == "empty" {
        for _ in 0..count {
            assert_eq!(count_poll_empty(&mut *a.cq, &mut [Wc::default(); CHAIN]), 0);
        }
    }
}

fn main() {
    let [_, kind, count] = &std::env::args().collect::<Vec<_>>()[..] else {
        panic!("usage: farcall-outside KIND COUNT")
    };
    let run: fn(&str, usize) = if kind.starts_with("call") { calls::run } else { run };
    run(kind, count.parse().unwrap());
}

//! Two connected queue pairs, and operations on them for tests.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod apart;
pub mod datagrams;
pub mod holdings;
pub mod memory;
pub mod process;
pub mod unreliable;

use std::os::fd::RawFd;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall_softnic::SoftNic;
use farcall_verbs::{
    Access, AhAttr, CompChannel, Context, CqInitAttr, Mtu, Notify, ProtectionDomain, Provider, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RawSrq, RecvWr, SendFlags, SendWr, Sge, Wc, WcStatus,
};

pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Q_Key of datagram ends.
pub const QKEY: u32 = 0x1234_5678;

/// Returns the name of a test by which its program selects it: the module of `file`, which contains the test, and
/// `test`.
pub fn name_in_program(file: &Location<'_>, test: &str) -> String {
    let module = Path::new(file.file()).file_stem().unwrap().to_str().unwrap();
    format!("{module}::{test}")
}

/// Time after which a test considers anything lost. Not a measurement.
pub const LOST: Duration = Duration::from_secs(20);

/// RTS with about ten seconds of transport retries, because a busy machine may delay a peer's service thread.
pub fn patient() -> QpAttr {
    QpAttr { timeout: Some(18), ..QpAttr::rts(0) }
}

pub struct End {
    pub context: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub channel: Arc<dyn CompChannel>,
    pub cq: Box<dyn RawCq>,
    pub qp: Box<dyn RawQp>,
    pub mr: Box<dyn RawMr>,
}

/// Maximum registered memory that the devices of ends from [`End::new`] move, in bytes.
pub static MOVED_BYTES_MAX: AtomicU64 = AtomicU64::new(0);

impl End {
    pub fn new(mr_bytes: usize, access: Access, cap: QpCap) -> Self {
        let softnic = SoftNic::new().moving_registered_memory(MOVED_BYTES_MAX.load(Ordering::Relaxed));
        let context = softnic.devices().unwrap()[0].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Self::in_domain(context, pd, mr_bytes, access, cap, QpType::Rc)
    }

    fn in_domain(
        context: Arc<dyn Context>,
        pd: Arc<dyn ProtectionDomain>,
        mr_bytes: usize,
        access: Access,
        cap: QpCap,
        qp_type: QpType,
    ) -> Self {
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(&CqInitAttr { cqe: 256, channel: Some(&*channel) }).unwrap();
        let qp = create_qp(&*pd, (&*cq, &*cq), None, cap, qp_type);
        let mr = pd.alloc_mr(mr_bytes, access).unwrap();
        Self { context, pd, channel, cq, qp, mr }
    }

    pub fn default() -> Self {
        Self::new(1 << 20, ALL, QpCap::default())
    }

    /// Creates an end of a transport other than RC.
    pub fn of(qp_type: QpType, cap: QpCap) -> Self {
        let context = SoftNic::open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Self::in_domain(context, pd, 1 << 20, ALL, cap, qp_type)
    }

    /// Creates another queue pair of the same protection domain, with a completion queue and a small region of its own.
    pub fn sibling(&self) -> Self {
        self.sibling_of(QpType::Rc, QpCap::default())
    }

    pub fn sibling_of(&self, qp_type: QpType, cap: QpCap) -> Self {
        Self::in_domain(self.context.clone(), self.pd.clone(), 4096, ALL, cap, qp_type)
    }

    pub fn path(&self) -> AhAttr {
        AhAttr { dgid: self.context.query_gid(1, 0).unwrap(), port_num: 1, ..AhAttr::default() }
    }

    pub fn init(&mut self) {
        let attr = match self.qp.qp_type() {
            QpType::Ud => QpAttr::init_datagrams(QKEY),
            _ => QpAttr::init(ALL),
        };
        self.qp.modify(&attr).unwrap();
    }

    pub fn rtr(&mut self, dest: u32) {
        let path = self.path();
        let attr = match self.qp.qp_type() {
            QpType::Rc => QpAttr::rtr(dest, 0, path, Mtu::Mtu4096),
            QpType::Uc => QpAttr::rtr_unreliable(dest, 0, path, Mtu::Mtu4096),
            _ => QpAttr::to(QpState::Rtr),
        };
        self.qp.modify(&attr).unwrap();
    }

    pub fn rts(&mut self) {
        let attr = match (self.qp.state(), self.qp.qp_type()) {
            (QpState::Sqd | QpState::Sqe, _) => QpAttr::to(QpState::Rts),
            (_, QpType::Rc) => patient(),
            _ => QpAttr::rts_unreliable(0),
        };
        self.qp.modify(&attr).unwrap();
    }

    /// RTS with about a second of transport retries: the time until an end detects that its peer exited before they
    /// connected.
    pub fn rts_hasty(&mut self) {
        self.qp.modify(&QpAttr { timeout: Some(15), ..QpAttr::rts(0) }).unwrap();
    }

    /// RTS with about 4 ms of transport retries and one receiver-not-ready retry, of 0.64 ms with the usual timer of
    /// the peer.
    pub fn rts_impatient(&mut self) {
        let attr = QpAttr { timeout: Some(8), retry_cnt: Some(1), rnr_retry: Some(1), ..QpAttr::rts(0) };
        self.qp.modify(&attr).unwrap();
    }

    pub fn connect(&mut self, dest: u32) {
        self.init();
        self.rtr(dest);
        self.rts();
    }

    /// Waits until requests reach the peer immediately; before that they may wait for its process.
    pub fn reach(&mut self) {
        self.send(&[SendWr::write(u64::MAX, &[], 0, 0).with_flags(SIGNALED)]);
        let wc = self.wait();
        assert_eq!((wc.wr_id, wc.status), (u64::MAX, WcStatus::SUCCESS));
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() as u64 + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.mr.len_bytes());
        // SAFETY: the range is inside the region, and no request is outstanding while tests read or write it.
        unsafe { self.mr.addr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.mr.len_bytes());
        let mut bytes = vec![0; len];
        // SAFETY: the range is inside the region, and no request is outstanding while tests read or write it.
        unsafe { self.mr.addr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn send(&mut self, wrs: &[SendWr<'_>]) {
        // SAFETY: the tests keep their regions and wait for completions.
        unsafe { self.qp.post_send(wrs) }.unwrap();
    }

    pub fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        // SAFETY: the tests keep their regions and wait for completions.
        unsafe { self.qp.post_recv(&[RecvWr::new(wr_id, sges)]) }.unwrap();
    }

    pub fn poll(&mut self) -> Option<Wc> {
        let mut wc = [Wc::default()];
        (self.cq.poll(&mut wc).unwrap() == 1).then_some(wc[0])
    }

    /// Polls until a completion arrives.
    pub fn wait(&mut self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < LOST, "no completion; {}", self.story());
            std::thread::yield_now();
        }
    }

    /// Sleeps on the channel until a completion arrives; never polls otherwise.
    pub fn sleep(&mut self, notify: Notify) -> Wc {
        let start = Instant::now();
        loop {
            self.cq.req_notify(notify).unwrap();
            if let Some(wc) = self.poll() {
                return wc;
            }
            while !readable(self.channel.fd(), 100) {
                assert!(start.elapsed() < LOST, "no event; {}", self.story());
            }
            self.channel.poll_cq_event().unwrap();
        }
    }

    /// Returns the state of the queue pair, and the counters of all queue pairs of this process.
    fn story(&self) -> String {
        let mut story = format!("queue pair {:#08x} in {}", self.qp.qp_num(), self.qp.state());
        let Ok(report) = farcall_stats::read_pid(std::process::id()) else { return story };
        for block in report.blocks.iter().filter(|block| block.live) {
            let counted: Vec<_> = block.counters.iter().filter(|(_, count)| *count > 0).collect();
            story += &format!("\n{}: {counted:?}", block.label);
        }
        story
    }

    /// Returns the completion queue whose event is available now.
    pub fn event(&self) -> Option<u32> {
        self.channel.poll_cq_event().unwrap()
    }

    /// Polls until `n` completions have arrived.
    pub fn wait_n(&mut self, n: usize) -> Vec<Wc> {
        (0..n).map(|_| self.wait()).collect()
    }
}

/// Creates a queue pair whose send and receive completions are delivered to `cqs`.
pub fn create_qp(
    pd: &dyn ProtectionDomain,
    (send_cq, recv_cq): (&dyn RawCq, &dyn RawCq),
    srq: Option<&dyn RawSrq>,
    cap: QpCap,
    qp_type: QpType,
) -> Box<dyn RawQp> {
    pd.create_qp(&QpInitAttr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all: false }).unwrap()
}

/// Waits up to `timeout_ms` for a descriptor to become readable.
pub fn readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the call accesses one pollfd, a local variable that outlives it.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

/// Connects two existing ends; `rts` brings both to RTS.
pub fn join(a: &mut End, b: &mut End, rts: impl Fn(&mut End)) {
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    b.rtr(qa);
    rts(a);
    rts(b);
}

pub fn pair_with(a: QpCap, b: QpCap) -> (End, End) {
    let (mut a, mut b) = (End::new(4 << 20, ALL, a), End::new(4 << 20, ALL, b));
    join(&mut a, &mut b, End::rts);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    a.reach();
    b.reach();
    (a, b)
}

pub fn pair() -> (End, End) {
    pair_with(QpCap::default(), QpCap::default())
}

pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9).wrapping_add(seed * 77) >> 5) as u8).collect()
}

pub const SIGNALED: SendFlags = SendFlags::SIGNALED;
pub const INLINE: SendFlags = SendFlags::INLINE;

//! Two endpoints of the software RNIC with faults, in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_faults::Faults;
use farcall_softnic::SoftNic;
use farcall_verbs::{
    Access, AhAttr, CompChannel, Context, CqInitAttr, Mtu, ProtectionDomain, Provider, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RecvWr, SendFlags, SendWr, Sge, Wc,
};

/// Timeout after which a test fails. Not a measurement.
pub const LOST: Duration = Duration::from_secs(20);

/// The Q_Key of datagram endpoints.
pub const QKEY: u32 = 0x1234_5678;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

pub struct End {
    pub context: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub channel: Arc<dyn CompChannel>,
    pub cq: Box<dyn RawCq>,
    pub qp: Box<dyn RawQp>,
    pub mr: Box<dyn RawMr>,
}

/// Opens a device with the specified faults.
pub fn open(faults: &Faults) -> Arc<dyn Context> {
    faults.around(SoftNic::new().devices().unwrap().remove(0)).open().unwrap()
}

pub fn faults(text: &str) -> Faults {
    Faults::new(text.parse().unwrap(), None)
}

impl End {
    pub fn new(context: Arc<dyn Context>, qp_type: QpType) -> Self {
        Self::try_new(context, qp_type).expect("memory")
    }

    /// Returns `None` if the memory of the endpoint is refused.
    pub fn try_new(context: Arc<dyn Context>, qp_type: QpType) -> Option<Self> {
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(&CqInitAttr { cqe: 256, channel: Some(&*channel) }).unwrap();
        let cap = QpCap { max_send_wr: 256, max_recv_wr: 256, ..QpCap::default() };
        let init = QpInitAttr { send_cq: &*cq, recv_cq: &*cq, srq: None, cap, qp_type, sq_sig_all: false };
        let mr = pd.alloc_mr(1 << 16, ALL).ok()?;
        let qp = pd.create_qp(&init).unwrap();
        Some(Self { context, pd, channel, cq, qp, mr })
    }

    pub fn path(&self) -> AhAttr {
        AhAttr { dgid: self.context.query_gid(1, 0).unwrap(), port_num: 1, ..AhAttr::default() }
    }

    /// Moves the queue pair to RTS, with `rnr_retry` receiver-not-ready retries.
    pub fn connect(&mut self, dest: u32, rnr_retry: u8) {
        let path = self.path();
        let steps = match self.qp.qp_type() {
            QpType::Rc => [
                QpAttr::init(ALL),
                QpAttr::rtr(dest, 0, path, Mtu::Mtu4096),
                QpAttr { rnr_retry: Some(rnr_retry), ..QpAttr::rts(0) },
            ],
            QpType::Uc => [
                QpAttr::init(ALL),
                QpAttr::rtr_unreliable(dest, 0, path, Mtu::Mtu4096),
                QpAttr::rts_unreliable(0),
            ],
            _ => [QpAttr::init_datagrams(QKEY), QpAttr::to(QpState::Rtr), QpAttr::rts_unreliable(0)],
        };
        for step in steps {
            self.qp.modify(&step).unwrap();
        }
    }

    pub fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        Sge { addr: self.mr.addr() as u64 + offset as u64, length: len_bytes as u32, lkey: self.mr.lkey() }
    }

    pub fn put(&self, offset: usize, word: u64) {
        assert!(offset + 8 <= self.mr.len_bytes());
        // SAFETY: the offset is inside the region; no request is in flight while tests write.
        unsafe { self.mr.addr().add(offset).cast::<u64>().write_unaligned(word) };
    }

    pub fn get(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= self.mr.len_bytes());
        // SAFETY: the offset is inside the region; its message is complete.
        unsafe { self.mr.addr().add(offset).cast::<u64>().read_unaligned() }
    }

    pub fn receive(&mut self, wr_id: u64, offset: usize, len_bytes: usize) {
        let sges = [self.sge(offset, len_bytes)];
        // SAFETY: the region exists as long as the queue pair.
        unsafe { self.qp.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
    }

    /// Posts a signalled SEND of the word at `offset`.
    pub fn send(&mut self, wr_id: u64, offset: usize) -> Result<(), farcall_verbs::PostError> {
        let sges = [self.sge(offset, 8)];
        let wr = SendWr::send(wr_id, &sges).with_flags(SendFlags::SIGNALED);
        // SAFETY: the region exists as long as the queue pair, and is not written to.
        unsafe { self.qp.post_send(&[wr]) }
    }

    /// Waits for the next `count` completions.
    pub fn take(&mut self, count: usize) -> Vec<Wc> {
        let (began, mut found) = (Instant::now(), Vec::new());
        while found.len() < count {
            let mut one = [Wc::default()];
            let taken = self.cq.poll(&mut one).unwrap();
            found.extend_from_slice(&one[..taken]);
            assert!(began.elapsed() < LOST, "{} of {count}: {found:?}", found.len());
            if taken == 0 {
                std::thread::yield_now();
            }
        }
        found
    }
}

/// Returns two connected endpoints: the first with faults, the second without.
pub fn connected(faults: &Faults, qp_type: QpType, rnr_retry: u8) -> (End, End) {
    let mut one = End::new(open(faults), qp_type);
    let mut other = End::new(SoftNic::open().unwrap(), qp_type);
    one.connect(other.qp.qp_num(), rnr_retry);
    other.connect(one.qp.qp_num(), rnr_retry);
    (one, other)
}

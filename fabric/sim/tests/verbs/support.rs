//! Two nodes with a queue pair each, and helper functions for tests.

use std::sync::Arc;
use std::time::Duration;

use farcall_sim::{Config, Host, World};
use farcall_verbs::{
    Access, AhAttr, AsyncEvent, Context, CqInitAttr, Mtu, ProtectionDomain, Provider, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RawSrq, RecvWr, SendFlags, SendWr, Sge, Wc,
};

pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
pub const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Virtual time after which a test fails.
pub const LOST: Duration = Duration::from_secs(100);

pub const QKEY: u32 = 0x1111_1111;

pub struct End {
    pub host: Host,
    pub context: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub cq: Box<dyn RawCq>,
    pub qp: Box<dyn RawQp>,
    pub srq: Option<Box<dyn RawSrq>>,
    pub mr: Box<dyn RawMr>,
}

impl End {
    pub fn new(host: &Host, qp_type: QpType, srq: Option<farcall_verbs::SrqInitAttr>) -> Self {
        let context = host.devices().unwrap()[0].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInitAttr { cqe: 512, channel: None }).unwrap();
        let srq = srq.map(|attr| pd.create_srq(&attr).unwrap());
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
        let qp = pd
            .create_qp(&QpInitAttr {
                send_cq: &*cq,
                recv_cq: &*cq,
                srq: srq.as_deref(),
                cap,
                qp_type,
                sq_sig_all: false,
            })
            .unwrap();
        let mr = pd.alloc_mr(1 << 20, ALL).unwrap();
        Self { host: host.clone(), context, pd, cq, qp, srq, mr }
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

    pub fn rtr(&mut self, path: AhAttr, dest: u32, mtu: Mtu) {
        let attr = match self.qp.qp_type() {
            QpType::Rc => QpAttr::rtr(dest, 0xff_fff0, path, mtu),
            QpType::Uc => QpAttr::rtr_unreliable(dest, 0xff_fff0, path, mtu),
            _ => QpAttr::to(QpState::Rtr),
        };
        self.qp.modify(&attr).unwrap();
    }

    pub fn rts(&mut self) {
        let attr = match self.qp.qp_type() {
            QpType::Rc => QpAttr::rts(0xff_fff0),
            _ => QpAttr::rts_unreliable(0xff_fff0),
        };
        self.qp.modify(&attr).unwrap();
    }

    /// Moves to RTS with few transport retries and few receiver-not-ready retries.
    pub fn rts_impatient(&mut self) {
        let attr =
            QpAttr { timeout: Some(8), retry_cnt: Some(1), rnr_retry: Some(1), ..QpAttr::rts(0xff_fff0) };
        self.qp.modify(&attr).unwrap();
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() as u64 + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    pub fn addr(&self) -> u64 {
        self.mr.remote_addr()
    }

    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.mr.len_bytes());
        // SAFETY: the range is inside the region, and the world does not run while a test writes.
        unsafe { self.mr.addr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.mr.len_bytes());
        let mut bytes = vec![0; len];
        // SAFETY: the range is inside the region, and the world does not run while a test reads.
        unsafe { self.mr.addr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }

    pub fn send(&mut self, wrs: &[SendWr<'_>]) {
        // SAFETY: tests keep their regions until they have waited for the completions.
        unsafe { self.qp.post_send(wrs) }.unwrap();
    }

    pub fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let wrs = [RecvWr::new(wr_id, sges)];
        let posted = match &mut self.srq {
            // SAFETY: tests keep their regions until they have waited for the completions.
            Some(srq) => unsafe { srq.post_recv(&wrs) },
            // SAFETY: tests keep their regions until they have waited for the completions.
            None => unsafe { self.qp.post_recv(&wrs) },
        };
        posted.unwrap();
    }

    pub fn poll(&mut self) -> Option<Wc> {
        let mut wc = [Wc::default()];
        (self.cq.poll(&mut wc).unwrap() == 1).then_some(wc[0])
    }

    pub fn async_event(&self) -> Option<AsyncEvent> {
        self.context.poll_async_event()
    }
}

/// A world of two nodes and a connected pair of queue pairs.
pub struct Pair {
    pub world: World,
    pub a: End,
    pub b: End,
}

impl Pair {
    pub fn new(config: Config, qp_type: QpType) -> Self {
        Self::with(config, qp_type, Mtu::Mtu1024, End::rts, None)
    }

    pub fn rc() -> Self {
        Self::new(Config::new(1), QpType::Rc)
    }

    pub fn impatient() -> Self {
        Self::with(Config::new(1), QpType::Rc, Mtu::Mtu1024, End::rts_impatient, None)
    }

    pub fn with(
        config: Config,
        qp_type: QpType,
        mtu: Mtu,
        rts: fn(&mut End),
        srq: Option<farcall_verbs::SrqInitAttr>,
    ) -> Self {
        let mut world = World::new(config);
        let (host_a, host_b) = (world.add_node(), world.add_node());
        let (mut a, mut b) = (End::new(&host_a, qp_type, None), End::new(&host_b, qp_type, srq));
        let (to_a, to_b) = ((a.path(), a.qp.qp_num()), (b.path(), b.qp.qp_num()));
        for (end, (path, dest)) in [(&mut a, to_b), (&mut b, to_a)] {
            end.init();
            end.rtr(path, dest, mtu);
            rts(end);
        }
        Self { world, a, b }
    }

    /// Handles events until `a` has a completion, and returns it.
    pub fn wait_a(&mut self) -> Wc {
        wait(&mut self.world, &mut self.a)
    }

    /// Handles events until `b` has a completion, and returns it.
    pub fn wait_b(&mut self) -> Wc {
        wait(&mut self.world, &mut self.b)
    }

    /// Handles all events.
    pub fn settle(&mut self) {
        let until = self.world.now() + LOST;
        while self.world.now() < until && self.world.step() {}
    }
}

pub fn wait(world: &mut World, end: &mut End) -> Wc {
    let mut got = None;
    let came = world.run_while_not(LOST, |_| {
        got = end.poll();
        got.is_some()
    });
    assert!(came, "no completion; queue pair in {}", end.qp.state());
    got.unwrap()
}

/// Returns bytes that differ from position to position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

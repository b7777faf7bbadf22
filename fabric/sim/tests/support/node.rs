//! A node of the traffic scenarios: its device, one completion queue for all queue pairs, receives, and a counter that
//! all nodes add to.

use std::collections::BTreeMap;
use std::sync::Arc;

use farcall_sim::check::SharedReceives;
use farcall_sim::{Host, Stream};
use farcall_verbs::{
    Access, AddressHandle, AhAttr, Context, CqInitAttr, Gid, ProtectionDomain, Provider, RawCq, RawMr,
    RawSrq, RecvWr, Sge, SrqAttr, SrqInitAttr,
};

pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Maximum length of a message.
pub const MESSAGE_BYTES: usize = 3_000;
/// Length of the header before a datagram.
pub const GRH_BYTES: usize = 40;
/// Length of a receive that is too small for most messages.
const SMALL_BYTES: usize = 100;
pub const RECEIVE_BIT: u64 = 1 << 63;
/// Number of receives of a shared queue.
pub const SHARED_RECEIVES: usize = 24;

pub fn read(mr: &dyn RawMr, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= mr.len_bytes());
    let mut bytes = vec![0; len];
    // SAFETY: the range is inside the region, and the world does not run during the call.
    unsafe { mr.addr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

pub fn write(mr: &dyn RawMr, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= mr.len_bytes());
    // SAFETY: the range is inside the region, and the world does not run during the call.
    unsafe { mr.addr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

pub fn sge(mr: &dyn RawMr, offset: usize, len: usize) -> Sge {
    Sge { addr: mr.addr() as u64 + offset as u64, length: len as u32, lkey: mr.lkey() }
}

/// Buffers for receives, and the set of the posted ones.
pub struct Buffers {
    mr: Box<dyn RawMr>,
    free: Vec<usize>,
    posted: BTreeMap<u64, usize>,
}

impl Buffers {
    const EACH_BYTES: usize = GRH_BYTES + MESSAGE_BYTES;

    pub fn new(pd: &dyn ProtectionDomain, count: usize) -> Self {
        let mr = pd.alloc_mr(count * Self::EACH_BYTES, ALL).unwrap();
        Self { mr, free: (0..count).collect(), posted: BTreeMap::new() }
    }

    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// Returns a buffer for a receive, if one is free; sometimes a small one.
    pub fn take(&mut self, wr_id: u64, random: &mut Stream) -> Option<[Sge; 1]> {
        let slot = self.free.pop()?;
        self.posted.insert(wr_id, slot);
        let len = if random.chance_ppm(100_000) { SMALL_BYTES } else { Self::EACH_BYTES };
        Some([sge(&*self.mr, slot * Self::EACH_BYTES, len)])
    }

    /// Returns the contents of a completed receive's buffer, and frees the buffer.
    pub fn give_back(&mut self, wr_id: u64, len: usize) -> Vec<u8> {
        let slot = self.posted.remove(&wr_id).expect("the accounts know it");
        self.free.push(slot);
        read(&*self.mr, slot * Self::EACH_BYTES, len.min(Self::EACH_BYTES))
    }
}

/// A shared receive queue with its checker.
pub struct Shared {
    pub srq: Box<dyn RawSrq>,
    pub account: SharedReceives,
    pub buffers: Buffers,
}

impl Shared {
    fn new(pd: &dyn ProtectionDomain) -> Self {
        let attr = SrqInitAttr { max_wr: SHARED_RECEIVES as u32, max_sge: 1 };
        Self {
            srq: pd.create_srq(&attr).unwrap(),
            account: SharedReceives::default(),
            buffers: Buffers::new(pd, SHARED_RECEIVES),
        }
    }

    pub fn arm(&mut self, limit: u32) {
        self.srq.modify(&SrqAttr { srq_limit: Some(limit), ..SrqAttr::default() }).unwrap();
        self.account.armed(limit);
    }

    pub fn post(&mut self, wr_id: u64, random: &mut Stream) {
        let Some(sges) = self.buffers.take(wr_id, random) else { return };
        // SAFETY: the region exists as long as the queue.
        unsafe { self.srq.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
        self.account.posted(wr_id);
    }
}

/// A counter that all nodes add to, and the old values that additions returned, which must all differ.
pub struct Counter {
    pub mr: Box<dyn RawMr>,
    found: BTreeMap<u64, u64>,
    /// Additions whose outcome remains unknown.
    pub unknown: u64,
}

impl Counter {
    pub fn found(&mut self, value: u64, wr_id: u64) {
        let twice = self.found.insert(value, wr_id);
        assert!(twice.is_none(), "two additions found {value}");
    }

    /// Checks the counter. `outstanding` is the number of additions that may still be in flight.
    pub fn check(&self, outstanding: u64) {
        let acknowledged = self.found.len() as u64;
        let total = u64::from_ne_bytes(read(&*self.mr, 0, 8).try_into().unwrap());
        assert!(
            (acknowledged..=acknowledged + self.unknown + outstanding).contains(&total),
            "{acknowledged} additions were acknowledged, {} are unknown, and the counter says {total}",
            self.unknown + outstanding
        );
        assert!(self.found.keys().all(|found| *found < total), "an addition found more than there was");
    }
}

/// One incarnation of a node.
pub struct Node {
    pub life: u64,
    pub context: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub cq: Box<dyn RawCq>,
    pub shared: Option<Shared>,
    pub counter: Counter,
}

impl Node {
    pub fn new(host: &Host, life: u64, has_shared: bool) -> Self {
        let context = host.devices().unwrap()[0].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInitAttr { cqe: 4_096, channel: None }).unwrap();
        let shared = has_shared.then(|| Shared::new(&*pd));
        let counter = Counter { mr: pd.alloc_mr(8, ALL).unwrap(), found: BTreeMap::new(), unknown: 0 };
        Self { life, context, pd, cq, shared, counter }
    }

    pub fn gid(&self) -> Gid {
        self.context.query_gid(1, 0).unwrap()
    }

    pub fn path_to(&self, gid: Gid) -> Box<dyn AddressHandle> {
        self.pd.create_ah(&AhAttr { dgid: gid, port_num: 1, ..AhAttr::default() }).unwrap()
    }
}

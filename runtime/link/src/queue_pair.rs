//! A queue pair, the regions that its work requests name, and the accounts of what is posted.
//!
//! This is what makes posting safe. A [`QueuePair`] keeps every region that its work requests name alive until the
//! requests are known to have ended, addresses memory as (region, offset) with bounds checked, and counts what is
//! posted and what is known to be complete, so that owners ask [`QueuePair::is_done`] before they overwrite a source or
//! reuse a destination. [`crate::Connection`] and [`crate::Datagrams`] say how it meets its peer.

mod complete;
mod ending;
mod post_recv;
mod post_send;

use std::sync::Arc;

use farcall_verbs::{Access, Error, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawQp, WcStatus};

use crate::bootstrap::QpInfo;
use crate::region::next_serial;
use crate::retired::{Address, Named, Requests, Retired};
use crate::shared_receives::{SharedReceives, SharedRegions};
use crate::work_request::{Attached, Regions, SGES_MAX, put};
use crate::{AddressId, Nic, Region, RegionId, Ticket};
pub use post_send::TOGETHER_MAX;

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairState {
    /// It is made, not connected.
    Fresh,
    /// Ready to send.
    Connected,
    /// A work request failed, or the owner closes: in error, not everything is known to have ended.
    Draining,
    /// Nothing of ours is under way any more.
    Drained,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// Sends outstanding.
    pub send_depth: u32,
    /// Receives posted; of no use with shared receives.
    pub recv_depth: u32,
    /// Pieces of one work request, at most 8.
    pub sges_max: u32,
    /// Of the single inline WRITEs ([`crate::Connection::write`]) one in so many is signalled; others always, since
    /// their buffers wait for the completion.
    pub signal_every: u16,
    /// Sends up to this many bytes are inline (no more than the device can).
    pub inline_max_bytes: u32,
    /// What the peer may do; nothing over datagrams.
    pub access: Access,
}

/// A completion of one of this pair's work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A send ended well; everything posted up to it is done.
    Send {
        /// What the poster gave.
        tag: u32,
        /// Which request.
        ticket: Ticket,
    },
    /// A message consumed a receive.
    Received {
        /// What the receive was posted with.
        tag: u64,
        /// Its length; of datagrams with 40 bytes of header.
        len_bytes: u32,
        /// The immediate data, if it has any.
        imm: Option<u32>,
    },
    /// A request failed: the pair is in error and drains.
    Failed(WcStatus),
    /// A request was flushed while draining.
    Flushed,
}

/// A queue pair with its regions and accounts. The fields are dropped in order: the pair before what its requests name.
pub struct QueuePair {
    qp: Box<dyn RawQp>,
    pub(crate) regions: Regions,
    _shared: Option<SharedRegions>,
    addresses: Vec<Option<Address>>,
    retired: Retired,
    /// Of datagrams, so that nobody posts what was prepared for other destinations; 0 of a connection.
    serial: u64,
    config: PairConfig,
    psn: u32,
    state: PairState,
    posted: u64,
    reaped: u64,
    unsignalled: u16,
    marked: bool,
    /// Receives with memory.
    receives: Receives,
    failure: Option<WcStatus>,
}

/// Receives are complete in order, so numbers are enough.
#[derive(Default)]
struct Receives {
    posted: u64,
    completed: u64,
    with_memory: bool,
}

pub(crate) const PSN_MASK: u32 = 0x00ff_ffff;
/// What datagrams carry to be accepted.
pub(crate) const QKEY: u32 = 0x0fa2_ca11;

impl QueuePair {
    /// Makes a pair in INIT. Each transport takes its own attributes (IBA table 91); real devices refuse any other.
    pub(crate) fn new(
        nic: &Nic,
        qp_type: QpType,
        cq: &dyn RawCq,
        config: PairConfig,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        let inline_max_bytes = config.inline_max_bytes.min(nic.attr.max_inline_data);
        let sges_max = config.sges_max.clamp(1, SGES_MAX as u32);
        let config = PairConfig { inline_max_bytes, sges_max, ..config };
        let cap = QpCap {
            max_send_wr: config.send_depth,
            max_recv_wr: if shared.is_some() { 0 } else { config.recv_depth.max(1) },
            max_send_sge: sges_max,
            max_recv_sge: sges_max,
            max_inline_data: inline_max_bytes,
        };
        let srq = shared.map(SharedReceives::raw);
        let attr = QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: false };
        let mut qp = nic.pd.create_qp(&attr)?;
        qp.modify(&match qp_type {
            QpType::Ud => QpAttr { port_num: Some(nic.port.port_num), ..QpAttr::init_datagrams(QKEY) },
            QpType::Uc => nic.port.init(config.access & (Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
            _ => nic.port.init(config.access),
        })?;
        let psn = nic.entropy.bytes::<4>().map_err(|e| Error::os("create QP", "random numbers", e))?;
        Ok(Self {
            qp,
            regions: Regions::default(),
            _shared: shared.map(SharedReceives::regions),
            addresses: Vec::new(),
            retired: Retired::default(),
            serial: if qp_type == QpType::Ud { next_serial() } else { 0 },
            config,
            psn: u32::from_le_bytes(psn) & PSN_MASK,
            state: PairState::Fresh,
            posted: 0,
            reaped: 0,
            unsignalled: 0,
            marked: false,
            receives: Receives::default(),
            failure: None,
        })
    }

    /// What the peer needs to connect or to send datagrams.
    pub fn info(&self, nic: &Nic) -> QpInfo {
        let mtu = if self.qp.qp_type() == QpType::Ud { nic.mtu() } else { nic.path_mtu() };
        QpInfo {
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            gid: nic.gid().0,
            lid: nic.port.attr.lid,
            mtu_log2: 7 + mtu as u8,
        }
    }

    pub(crate) fn modify(&mut self, attrs: [QpAttr; 2]) -> Result<(), Error> {
        attrs.iter().try_for_each(|attr| self.qp.modify(attr))?;
        self.state = PairState::Connected;
        Ok(())
    }

    pub(crate) fn psn(&self) -> u32 {
        self.psn
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.qp.qp_type()
    }

    pub(crate) fn start_datagrams(&mut self) -> Result<(), Error> {
        let rts = QpAttr::rts_unreliable(self.psn);
        self.modify([QpAttr::to(QpState::Rtr), rts])
    }

    pub(crate) fn add_peer(&mut self, nic: &Nic, peer: &QpInfo) -> Result<AddressId, Error> {
        if peer.qp_num > PSN_MASK {
            return Err(Error::invalid("add peer", "a queue pair number of more than 24 bits"));
        }
        let handle = nic.pd.create_ah(&nic.path_to(peer.gid(), peer.lid))?;
        Ok(AddressId(put(&mut self.addresses, Address(handle, peer.qp_num))))
    }

    /// What was prepared for destinations must be prepared again.
    pub(crate) fn remove_address(&mut self, at: usize) {
        if let Some(address) = self.addresses.get_mut(at).and_then(Option::take) {
            self.retire(0, Named::Address(address));
            self.serial = next_serial();
        }
    }

    /// The queue pair's number.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// The status of the request that failed first.
    pub const fn failure(&self) -> Option<WcStatus> {
        self.failure
    }

    /// Whether WRITEs of the peer into `region` are placed in address order, final byte last. Nobody WRITEs over UD.
    pub fn places_in_order(&self, region: &Region) -> bool {
        self.qp_type() == QpType::Ud || self.qp.places_in_order(region.mr())
    }

    /// Keeps a region alive as long as this pair's requests may name it, and makes it postable.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        self.regions.attach(region)
    }

    /// Takes a region away: nothing more names it, and another one may get its name. It is kept until what was posted
    /// has ended.
    pub fn detach(&mut self, id: RegionId) {
        if let Some(Attached { region, is_received_into }) = self.regions.detach(id) {
            let receives = if is_received_into { self.receives.posted } else { 0 };
            self.retire(receives, Named::Region { _kept: region });
        }
    }

    /// Keeps what is named by the sends posted until now, and by so many receives.
    fn retire(&mut self, receives: u64, named: Named) {
        self.retired.keep(Requests { sends: self.posted, receives }, named);
        self.release_retired();
    }

    #[inline]
    fn release_retired(&mut self) {
        if !self.retired.is_empty() {
            self.retired.release(Requests { sends: self.reaped, receives: self.receives.completed });
        }
    }
}

/// Lets a kind of queue pair be used as one.
macro_rules! is_queue_pair {
    ($kind:ident) => {
        impl std::ops::Deref for $kind {
            type Target = QueuePair;

            fn deref(&self) -> &QueuePair {
                &self.0
            }
        }

        impl std::ops::DerefMut for $kind {
            fn deref_mut(&mut self) -> &mut QueuePair {
                &mut self.0
            }
        }

        impl From<$kind> for QueuePair {
            fn from(pair: $kind) -> Self {
                pair.0
            }
        }
    };
}
pub(crate) use is_queue_pair;

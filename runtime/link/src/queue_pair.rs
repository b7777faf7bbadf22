//! A queue pair, the regions that its work requests name, and the accounting of posted requests.
//!
//! This module makes posting safe. A [`QueuePair`] keeps every region that its work requests name alive until the
//! requests are known to have completed. It addresses memory as (region, offset) with checked bounds, and counts
//! posted and completed requests, so that callers can query [`QueuePair::is_done`] before they overwrite a source or
//! reuse a destination. [`crate::Connection`] and [`crate::Datagrams`] implement how it connects to its peers.

mod complete;
mod draining;
mod post_recv;
mod post_send;

use std::sync::Arc;

use farcall_verbs::{Access, Error, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawQp, WcStatus};

use crate::bootstrap::QpInfo;
use crate::deferred_release::{Address, DeferredRelease, ReferencedObject, Requests};
use crate::region::next_serial;
use crate::shared_receives::{SharedReceives, SharedRegions};
use crate::work_request::{Attached, Regions, SGES_MAX, insert_free};
use crate::{AddressId, Nic, Region, RegionId, Ticket};
pub use post_send::TOGETHER_MAX;

/// Lifecycle of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QpLifecycle {
    /// Created, not connected.
    Fresh,
    /// Ready to send.
    Connected,
    /// In the error state, after a failed work request or a close. Some requests are not known to have completed.
    Draining,
    /// No request of this process is in flight any more.
    Drained,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Maximum number of outstanding sends.
    pub send_depth: u32,
    /// Maximum number of posted receives; unused with shared receives.
    pub recv_depth: u32,
    /// Maximum number of SGEs of a work request, at most 8.
    pub sges_max: u32,
    /// One of every `signal_every` short (inline) requests of [`crate::Connection::write`] and its variants is
    /// signalled. Longer requests are always signalled, because their buffers stay in use until the completion.
    pub signal_every: u16,
    /// Sends up to this length in bytes are inline (limited by the device).
    pub inline_max_bytes: u32,
    /// Access of the peer; without effect for datagrams.
    pub access: Access,
}

/// A completion of a work request of this queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A send completed successfully, and so has everything posted before it.
    Send {
        /// Tag passed when it was posted.
        tag: u32,
        /// Ticket of the request.
        ticket: Ticket,
    },
    /// A message consumed a receive.
    Received {
        /// Tag of the receive.
        tag: u64,
        /// Length of the message; for datagrams including 40 bytes of header.
        len_bytes: u32,
        /// Immediate data of the message.
        imm: Option<u32>,
    },
    /// A request failed: the queue pair is in the error state and drains.
    Failed(WcStatus),
    /// A request was flushed during draining.
    Flushed,
}

/// A queue pair with its regions and accounting. Fields are dropped in order: the queue pair before the objects that
/// its requests name.
pub struct QueuePair {
    qp: Box<dyn RawQp>,
    pub(crate) regions: Regions,
    _shared: Option<SharedRegions>,
    addresses: Vec<Option<Address>>,
    deferred: DeferredRelease,
    /// Identifies the current set of datagram destinations, so that chains prepared for another set are refused; 0 for
    /// a connection.
    serial: u64,
    config: QpSizes,
    psn: u32,
    state: QpLifecycle,
    posted: u64,
    reaped: u64,
    unsignalled: u16,
    marked: bool,
    /// Receives and their accounting.
    receives: Receives,
    failure: Option<WcStatus>,
}

/// Receives complete in order, so counters are sufficient.
#[derive(Default)]
struct Receives {
    posted: u64,
    completed: u64,
    with_memory: bool,
}

pub(crate) const PSN_MASK: u32 = 0x00ff_ffff;
/// Q_Key of all datagrams.
pub(crate) const QKEY: u32 = 0x0fa2_ca11;

impl QueuePair {
    /// Creates a queue pair in INIT. Each transport takes its own attributes (IBA table 91); hardware refuses any
    /// others.
    pub(crate) fn new(
        nic: &Nic,
        qp_type: QpType,
        cq: &dyn RawCq,
        config: QpSizes,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        let inline_max_bytes = config.inline_max_bytes.min(nic.attr().max_inline_data);
        let sges_max = config.sges_max.clamp(1, SGES_MAX as u32);
        let config = QpSizes { inline_max_bytes, sges_max, ..config };
        let cap = QpCap {
            max_send_wr: config.send_depth,
            max_recv_wr: if shared.is_some() { 0 } else { config.recv_depth.max(1) },
            max_send_sge: sges_max,
            max_recv_sge: sges_max,
            max_inline_data: inline_max_bytes,
        };
        let srq = shared.map(SharedReceives::raw);
        let attr = QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: false };
        let mut qp = nic.pd().create_qp(&attr)?;
        qp.modify(&match qp_type {
            QpType::Ud => QpAttr { port_num: Some(nic.port().port_num), ..QpAttr::init_datagrams(QKEY) },
            QpType::Uc => nic.port().init(config.access & (Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
            _ => nic.port().init(config.access),
        })?;
        let psn = nic.entropy().bytes::<4>().map_err(|e| Error::os("create QP", "random numbers", e))?;
        Ok(Self {
            qp,
            regions: Regions::default(),
            _shared: shared.map(SharedReceives::regions),
            addresses: Vec::new(),
            deferred: DeferredRelease::default(),
            serial: if qp_type == QpType::Ud { next_serial() } else { 0 },
            config,
            psn: u32::from_le_bytes(psn) & PSN_MASK,
            state: QpLifecycle::Fresh,
            posted: 0,
            reaped: 0,
            unsignalled: 0,
            marked: false,
            receives: Receives::default(),
            failure: None,
        })
    }

    /// Returns the address that a peer needs to connect or to send datagrams.
    pub fn info(&self, nic: &Nic) -> QpInfo {
        let mtu = if self.qp.qp_type() == QpType::Ud { nic.mtu() } else { nic.path_mtu() };
        QpInfo {
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            gid: nic.gid().0,
            lid: nic.port().attr.lid,
            mtu_log2: 7 + mtu as u8,
        }
    }

    pub(crate) fn modify(&mut self, attrs: [QpAttr; 2]) -> Result<(), Error> {
        attrs.iter().try_for_each(|attr| self.qp.modify(attr))?;
        self.state = QpLifecycle::Connected;
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
        let handle = nic.pd().create_ah(&nic.path_to(peer.gid(), peer.lid))?;
        Ok(AddressId(insert_free(&mut self.addresses, Address(handle, peer.qp_num))))
    }

    /// Removes a destination. Chains prepared before are refused afterwards.
    pub(crate) fn remove_address(&mut self, at: usize) {
        if let Some(address) = self.addresses.get_mut(at).and_then(Option::take) {
            self.defer_release(0, ReferencedObject::Address(address));
            self.serial = next_serial();
        }
    }

    /// Returns the queue pair number.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Returns the status of the first request that failed.
    pub const fn failure(&self) -> Option<WcStatus> {
        self.failure
    }

    /// Returns whether WRITEs of the peer into `region` are placed in address order, last byte last. True over UD,
    /// which has no WRITEs.
    pub fn places_in_order(&self, region: &Region) -> bool {
        self.qp_type() == QpType::Ud || self.qp.places_in_order(region.mr())
    }

    /// Makes a region usable by requests of this queue pair, and keeps it alive as long as they may name it.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        self.regions.attach(region)
    }

    /// Detaches a region: no later request can name it, and its identifier may be reused. The region is kept until all
    /// requests posted so far have completed.
    pub fn detach(&mut self, id: RegionId) {
        if let Some(Attached { region, is_receive_target }) = self.regions.detach(id) {
            let receives = if is_receive_target { self.receives.posted } else { 0 };
            self.defer_release(receives, ReferencedObject::Region { _region: region });
        }
    }

    /// Keeps `object` until the sends posted so far, and the first `receives` receives, have completed.
    fn defer_release(&mut self, receives: u64, object: ReferencedObject) {
        self.deferred.add(Requests { sends: self.posted, receives }, object);
        self.release_deferred();
    }

    #[inline]
    fn release_deferred(&mut self) {
        if !self.deferred.is_empty() {
            self.deferred.release(Requests { sends: self.reaped, receives: self.receives.completed });
        }
    }
}

/// Makes `QueuePair`'s methods available on a newtype of it.
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

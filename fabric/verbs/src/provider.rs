//! Traits that a provider implements.
//!
//! Objects of the control path are shared (`Arc`); those of the data path are owned (`Box`, `&mut self`). A queue pair
//! or completion queue has one owner at a time; the owners of related objects may be different threads. Dropping an
//! object destroys it. Drop a queue pair before its completion queues are *polled to the end*, while their owner still
//! polls them: completions of a destroyed queue pair are not delivered.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::{
    Access, AhAttr, AsyncEvent, DeviceAttr, Error, Gid, GidChoice, GidEntry, GidType, LinkLayer, MrAttr,
    MrMemory, Mtu, PortAttr, PostError, QpAttr, QpCap, QpState, QpType, RecvWr, Result, SendWr, SrqAttr,
    SrqCap, SrqInitAttr, Wc,
};

/// Parameters of a new completion queue.
pub struct CqInitAttr<'a> {
    /// Minimum number of completions that the queue holds.
    pub cqe: u32,
    /// Channel that receives the queue's events; `None`: the queue can only be polled.
    pub channel: Option<&'a dyn CompChannel>,
}

impl fmt::Debug for CqInitAttr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqInitAttr")
            .field("cqe", &self.cqe)
            .field("has_channel", &self.channel.is_some())
            .finish_non_exhaustive()
    }
}

/// Parameters of a new queue pair (`ibv_qp_init_attr`).
pub struct QpInitAttr<'a> {
    /// Completion queue of sends.
    pub send_cq: &'a dyn RawCq,
    /// Completion queue of receives.
    pub recv_cq: &'a dyn RawCq,
    /// Shared receive queue that replaces the queue pair's own receive queue.
    pub srq: Option<&'a dyn RawSrq>,
    /// Sizes.
    pub cap: QpCap,
    /// Transport.
    pub qp_type: QpType,
    /// Whether every send is signalled, whatever its flags.
    pub sq_sig_all: bool,
}

impl fmt::Debug for QpInitAttr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpInitAttr")
            .field("cap", &self.cap)
            .field("qp_type", &self.qp_type)
            .field("sq_sig_all", &self.sq_sig_all)
            .finish_non_exhaustive()
    }
}

/// An implementation of devices: the software RNIC, the system's libibverbs, or a simulated network.
pub trait Provider: Send + Sync {
    /// Returns a short name: `softnic`, `ibv`, `sim`.
    fn name(&self) -> &'static str;

    /// Returns the available devices.
    ///
    /// # Errors
    /// Returns an error if the provider cannot work on this machine; the message contains the reason and a remedy.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>>;
}

/// A device that can be opened.
pub trait Device: Send + Sync {
    /// Returns the device's name, unique within its provider.
    fn name(&self) -> &str;

    /// Returns the name of its provider.
    fn provider(&self) -> &'static str;

    /// Opens the device.
    ///
    /// # Errors
    /// Returns an error if the device no longer exists or access is denied.
    fn open(&self) -> Result<Arc<dyn Context>>;
}

/// An opened device (`ibv_context`).
pub trait Context: Send + Sync {
    /// Returns the device's capabilities and limits.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Returns a port's attributes; ports count from 1.
    ///
    /// # Errors
    /// Returns an error if there is no such port.
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// Returns an entry of a port's GID table.
    ///
    /// # Errors
    /// Returns an error if there is no such port or entry.
    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid>;

    /// Returns the used entries of a port's GID table with their attributes; [`GidChoice`] chooses one.
    ///
    /// # Errors
    /// Returns an error if there is no such port.
    fn query_gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let port = self.query_port(port_num)?;
        let gid_type = match port.link_layer {
            LinkLayer::InfiniBand => GidType::InfiniBand,
            LinkLayer::Ethernet => GidType::RoceV2,
        };
        (0..port.gid_tbl_len)
            .map(|index| {
                Ok(GidEntry { index, gid: self.query_gid(port_num, index)?, gid_type, netdev: None })
            })
            .filter(|entry| !entry.as_ref().is_ok_and(|entry| entry.gid == Gid::default()))
            .collect()
    }

    /// Chooses the GID of a port that peers use as its address: the provider's choice, or the configured one.
    ///
    /// # Errors
    /// Returns an error if there is no such port or no such GID.
    fn choose_gid(&self, port_num: u8) -> Result<GidChoice> {
        GidChoice::automatic(self.query_port(port_num)?.link_layer, self.query_gid_table(port_num)?)
    }

    /// Returns the GID that peers should use now. It differs from `chosen` if that was an address of this host and the
    /// host's addresses have changed.
    fn gid_now(&self, chosen: &GidEntry) -> GidEntry {
        chosen.clone()
    }

    /// Checks whether this process may connect to the owner of a queue pair; never blocks. Call it before resources are
    /// reserved for that process or data is sent to it. A device that reaches other hosts does not know the owners and
    /// accepts all.
    ///
    /// # Errors
    /// Returns an error if there is no such owner on this host, or if it is not authorized.
    fn check_owner(&self, _gid: Gid, _qp_num: u32) -> Result<()> {
        Ok(())
    }

    /// Checks whether this process may connect to processes of a user of this host, given the user id. Like
    /// [`Context::check_owner`], a device that reaches other hosts accepts all.
    ///
    /// # Errors
    /// Returns an error if the user is not authorized.
    fn check_user(&self, _user: u32) -> Result<()> {
        Ok(())
    }

    /// Returns whether this device should carry bulk bytes to a queue pair: by hardware, by shared memory, or because
    /// it is configured to. If it would only send packets built in software, programs that only transfer bytes are
    /// better served by the system's own connections.
    fn carries_to(&self, _gid: Gid, _qp_num: u32) -> bool {
        true
    }

    /// Returns the largest MTU whose packets to other hosts are not fragmented, if known: smaller packets cost less
    /// than fragments. Used for the paths of connected queue pairs; `None` means the port's own MTU.
    fn whole_mtu(&self) -> Option<Mtu> {
        None
    }

    /// Checks whether the system's own connections may be used between these addresses in place of this device.
    ///
    /// # Errors
    /// Returns an error if the configuration forbids the peer or the path to it.
    fn check_connection(&self, _own: IpAddr, _peer: IpAddr) -> Result<()> {
        Ok(())
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Returns an error if the device has no more protection domains.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>>;

    /// Creates a completion channel.
    ///
    /// # Errors
    /// Returns an error if the system has no more file descriptors.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>>;

    /// Creates a completion queue.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, or the channel belongs to another provider.
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>>;

    /// Returns a descriptor that becomes readable when an asynchronous event may have occurred; `None` if there is no
    /// such descriptor.
    fn async_event_fd(&self) -> Option<RawFd> {
        None
    }

    /// Returns the next asynchronous event, if there is one.
    fn poll_async_event(&self) -> Option<AsyncEvent>;
}

/// A protection domain: a queue pair can access only regions of its own domain.
pub trait ProtectionDomain: Send + Sync {
    /// Allocates zeroed memory of the kind that suits the provider best, and registers it. The length is rounded up to
    /// complete pages.
    ///
    /// # Errors
    /// Returns an error if memory or regions are exhausted, or the access flags break a rule.
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>>;

    /// Registers existing memory.
    ///
    /// # Errors
    /// Returns an error if the memory does not permit the access, or the provider cannot share such memory.
    ///
    /// # Safety
    /// The `len_bytes` at `addr` must stay mapped until the region is deregistered, and no reference may exist to
    /// memory that peers are allowed to write.
    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>>;

    /// Registers memory whose first byte has another address for peers than its own. Local elements use the memory's
    /// own addresses.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::reg_mr`]. Also fails if the addresses differ and the provider does not
    /// support that.
    ///
    /// # Safety
    /// See [`ProtectionDomain::reg_mr`].
    unsafe fn reg_mr_at(&self, memory: MrMemory, access: Access) -> Result<Box<dyn RawMr>> {
        let MrMemory { addr, len_bytes, remote_addr } = memory;
        if remote_addr == addr as u64 {
            // SAFETY: this function and `reg_mr` have the same contract: the memory stays mapped until it is
            // deregistered, and no reference exists to memory that peers may write.
            return unsafe { self.reg_mr(addr, len_bytes, access) };
        }
        let what =
            format!("peers name memory at {addr:p} by that address, not by {remote_addr:#x}: use reg_mr");
        Err(Error::Unsupported { operation: "reg_mr_at", provider: "this provider", what })
    }

    /// Re-registers a region in this domain with other memory (address and length) or other permissions; `None` leaves
    /// the value unchanged. Equivalent to deregistering `mr` and registering the memory, except that the keys stay the
    /// same.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::reg_mr`]. Also fails if the region belongs to another provider, if it
    /// was not created by `reg_mr`, or if the provider does not support the call. After an error `mr` must not be used
    /// any more, only dropped.
    ///
    /// # Safety
    /// See [`ProtectionDomain::reg_mr`].
    unsafe fn rereg_mr(
        &self,
        mr: &dyn RawMr,
        memory: Option<MrMemory>,
        access: Option<Access>,
    ) -> Result<Box<dyn RawMr>> {
        let _ = (mr, memory, access);
        let what = "deregister the region and register another".into();
        Err(Error::Unsupported { operation: "rereg_mr", provider: "this provider", what })
    }

    /// Creates a queue pair in `Reset`.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, the transport is not supported, or a queue belongs to another provider.
    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Returns an error if shared receive queues are not supported or a limit is exceeded.
    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>>;

    /// Creates an address handle for datagrams.
    ///
    /// # Errors
    /// Returns an error if address handles are not supported or the path is unknown.
    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>>;
}

/// Guarantee that deregistration achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Revoked {
    /// No peer accesses the memory any more.
    Now,
    /// A stopped peer is inside an access that was admitted earlier. The provider retains the memory until the peer
    /// leaves the access or exits. Provider-allocated memory only: other memory is never released to its owner in this
    /// state.
    Quarantined,
}

/// A registered memory region. Dropping it deregisters.
pub trait RawMr: Send + Sync {
    /// Returns the region's attributes, which never change.
    fn attr(&self) -> &MrAttr;

    /// Returns the address of the first byte. Peers and the NIC may write to the memory at any time: never create a
    /// reference to it.
    fn addr(&self) -> *mut u8 {
        self.attr().addr
    }

    /// Returns the address of the first byte in the requests of peers.
    fn remote_addr(&self) -> u64 {
        self.attr().remote_addr
    }

    /// Returns the length in bytes.
    fn len_bytes(&self) -> usize {
        self.attr().len_bytes
    }

    /// Returns the key for local gather/scatter elements.
    fn lkey(&self) -> u32 {
        self.attr().lkey
    }

    /// Returns the key for the requests of peers.
    fn rkey(&self) -> u32 {
        self.attr().rkey
    }

    /// Returns the permitted accesses.
    fn access(&self) -> Access {
        self.attr().access
    }

    /// Deregisters the region and waits, for a bounded time, for accesses in flight.
    fn dereg(self: Box<Self>) -> Revoked;

    /// Returns the concrete type, for the provider's own downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// Condition for the next event of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// On the next completion.
    Any,
    /// On the next solicited or failed completion.
    Solicited,
}

/// A completion channel: it receives the events of completion queues and has a descriptor that becomes readable.
pub trait CompChannel: Send + Sync {
    /// Returns the descriptor for poll, epoll or a runtime. It is non-blocking.
    fn fd(&self) -> RawFd;

    /// Takes and acknowledges one event, and returns the id of its completion queue. Returns `None` if there is no
    /// event.
    ///
    /// # Errors
    /// Returns an error if the descriptor fails.
    fn poll_cq_event(&self) -> Result<Option<u32>>;

    /// Returns the concrete type, for the provider's own downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue.
pub trait RawCq: Send {
    /// Returns the queue's number, unique in its context, as reported by [`CompChannel::poll_cq_event`].
    fn id(&self) -> u32;

    /// Takes up to `wc.len()` completions and returns their number. Also makes progress for all objects attached to the
    /// queue.
    ///
    /// # Errors
    /// Returns an error if the queue has overrun or the device failed.
    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize>;

    /// Requests one event. Poll once more before sleeping: completions that arrived earlier raise no event.
    ///
    /// # Errors
    /// Returns an error if the queue has no channel.
    fn req_notify(&mut self, notify: Notify) -> Result<()>;

    /// Returns the concrete type, for the provider's own downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// A shared receive queue. If it is dropped while queue pairs use it, they keep its receives; [`RawSrq::destroy`] fails
/// in that case.
pub trait RawSrq: Send {
    /// Returns the queue's number, as named by its asynchronous events.
    fn srq_num(&self) -> u32;

    /// Returns the queue's sizes and limit.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn query(&self) -> Result<SrqCap>;

    /// Changes the size or the limit; after an error nothing has changed.
    ///
    /// # Errors
    /// Returns an error if the device cannot hold that many receives, or if more receives are outstanding than the new
    /// size.
    fn modify(&mut self, attr: &SrqAttr) -> Result<()>;

    /// Destroys the queue.
    ///
    /// # Errors
    /// Returns the unchanged queue in [`SrqInUse`] if queue pairs use it (`EBUSY`).
    fn destroy(self: Box<Self>) -> Result<(), SrqInUse>;

    /// Posts receives.
    ///
    /// # Errors
    /// See [`RawQp::post_recv`].
    ///
    /// # Safety
    /// See [`RawQp::post_recv`].
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Returns the concrete type, for the provider's own downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// A shared receive queue that was not destroyed.
pub struct SrqInUse {
    /// The unchanged queue.
    pub srq: Box<dyn RawSrq>,
    /// Reason of the failure.
    pub source: Error,
}

impl std::fmt::Debug for SrqInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqInUse").field("source", &self.source).finish_non_exhaustive()
    }
}

/// An address handle.
pub trait AddressHandle: Send + Sync {
    /// Returns the value for [`crate::UdTarget::ah`].
    fn as_raw(&self) -> *const ();
}

/// A queue pair.
pub trait RawQp: Send {
    /// Returns the queue pair number.
    fn qp_num(&self) -> u32;

    /// Returns the transport.
    fn qp_type(&self) -> QpType;

    /// Returns the state. An error may have changed it since the last call.
    fn state(&self) -> QpState;

    /// Returns the sizes of the created queue pair.
    fn cap(&self) -> QpCap;

    /// Changes attributes and state.
    ///
    /// # Errors
    /// Returns an error if the transition is not allowed, a required attribute is missing, or the peer is not
    /// reachable. The state is then unchanged.
    fn modify(&mut self, attr: &QpAttr) -> Result<()>;

    /// Posts send requests in order, as one doorbell.
    ///
    /// # Errors
    /// Returns an error if the queue is full or a request is malformed; the requests before it in the batch are posted.
    ///
    /// # Safety
    /// The memory of non-inline elements must stay valid, and unwritten (READ: unread and unwritten), until the
    /// completion of the request, or one that is known to follow it, has been polled, or until the queue pair was
    /// drained in the error state. The same holds for a datagram's address handle, which must belong to this provider.
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Checks whether all of these requests could be posted now, without posting any. For interfaces that post all
    /// requests of a batch or none (`ibv_wr_complete`). A provider that cannot check without posting accepts all.
    ///
    /// # Errors
    /// Returns the error of the first request that [`RawQp::post_send`] would refuse.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn check_sends(&mut self, _wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }

    /// Posts receives in order.
    ///
    /// # Errors
    /// Returns an error if the queue is full, a request is malformed, the state is `Reset`, or a shared receive queue
    /// is attached.
    ///
    /// # Safety
    /// The memory of the elements must stay valid and untouched until the receive's completion has been polled or the
    /// queue pair was drained in the error state.
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Returns whether the payload of WRITEs into `mr` is placed in address order, the final byte last, so that a
    /// reader may poll that byte (`ibv_query_qp_data_in_order`).
    fn places_in_order(&self, mr: &dyn RawMr) -> bool;

    /// Returns whether all accesses that were admitted before this queue pair left RTR/RTS have ended. Returns false
    /// only while a stopped peer is inside such an access; memory granted to the peer must not be reused until then.
    fn is_quiesced(&self) -> bool;
}

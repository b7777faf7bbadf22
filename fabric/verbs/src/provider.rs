//! What a provider implements.
//!
//! Cold objects are shared (`Arc`), hot ones are owned (`Box`, `&mut self`): a queue pair or completion queue has one
//! owner at a time, who may live in another thread than the owner of its peer objects. Dropping an object destroys it;
//! a queue pair must be dropped before its completion queues are *polled to the end*, never after the owner forgot
//! them: completions of a destroyed pair are not delivered.

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::{
    Access, AhAttr, AsyncEvent, CqInitAttr, DeviceAttr, Error, Gid, GidChoice, GidEntry, GidType, LinkLayer,
    MrAttr, MrMemory, Mtu, PortAttr, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Result,
    SendWr, SrqAttr, SrqCap, SrqInitAttr, Wc,
};

/// A way to reach devices: the software RNIC, the system's libibverbs, a simulated world.
pub trait Provider: Send + Sync {
    /// A short name: `softnic`, `ibv`, `sim`.
    fn name(&self) -> &'static str;

    /// The devices there are.
    ///
    /// # Errors
    /// If the provider cannot work on this machine; the text says why and what to do.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>>;
}

/// A device that can be opened.
pub trait Device: Send + Sync {
    /// Its name, unique in its provider.
    fn name(&self) -> &str;

    /// The name of its provider.
    fn provider(&self) -> &'static str;

    /// Opens it.
    ///
    /// # Errors
    /// If it is gone or not permitted.
    fn open(&self) -> Result<Arc<dyn Context>>;
}

/// An opened device (`ibv_context`).
pub trait Context: Send + Sync {
    /// What it can do.
    ///
    /// # Errors
    /// If the device fails.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// A port's attributes; ports count from 1.
    ///
    /// # Errors
    /// If there is no such port.
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// If there is no such port or entry.
    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid>;

    /// The entries in use of a port's GID table, with what each is good for; [`GidChoice`] chooses one.
    ///
    /// # Errors
    /// If there is no such port.
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

    /// Which GID of a port to be reached under: the provider's choice, or what its user told it to take.
    ///
    /// # Errors
    /// If there is no such port, or no such GID.
    fn choose_gid(&self, port_num: u8) -> Result<GidChoice> {
        GidChoice::automatic(self.query_port(port_num)?.link_layer, self.query_gid_table(port_num)?)
    }

    /// The GID to be reached under now, where that is known to be another than the one that was chosen: it was an
    /// address of this host, which has others now.
    fn gid_now(&self, chosen: &GidEntry) -> GidEntry {
        chosen.clone()
    }

    /// Checks that the owner of a queue pair may be connected to; never waits for him. To be asked before anything is
    /// reserved for him or told to him. A device that reaches other machines knows nothing of owners, and lets all
    /// pass.
    ///
    /// # Errors
    /// If there is no such owner here, or he is not let in.
    fn check_owner(&self, _gid: Gid, _qp_num: u32) -> Result<()> {
        Ok(())
    }

    /// Checks that processes of a user of this machine may be connected to, as far as his number says. As with
    /// [`Context::check_owner`], a device that reaches other machines lets all pass.
    ///
    /// # Errors
    /// If he is not let in.
    fn check_user(&self, _user: u32) -> Result<()> {
        Ok(())
    }

    /// Whether this device itself carries bytes to a queue pair: by hardware, by memory that both share, or because it
    /// was told to. Where it would only make packets of them in software, programs that move bytes and nothing else do
    /// better over the system's own connections.
    fn carries_to(&self, _gid: Gid, _qp_num: u32) -> bool {
        true
    }

    /// The longest MTU with which packets to other hosts go in one piece, if that is known: shorter packets cost less
    /// than packets in pieces. For the paths of connected queue pairs; `None`: the port's own.
    fn whole_mtu(&self) -> Option<Mtu> {
        None
    }

    /// Checks that the system's own connections may be used between these addresses in place of this device.
    ///
    /// # Errors
    /// If whoever runs the program forbids the peer, or the way to him.
    fn check_connection(&self, _own: IpAddr, _peer: IpAddr) -> Result<()> {
        Ok(())
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// If there is no room for it.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>>;

    /// A new completion channel.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>>;

    /// A new completion queue.
    ///
    /// # Errors
    /// If a limit is exceeded, or the channel is another provider's.
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>>;

    /// A descriptor that polls readable when an asynchronous event may have come; `None` if there is none to wait on.
    fn async_event_fd(&self) -> Option<RawFd> {
        None
    }

    /// The next asynchronous event, if there is one.
    fn poll_async_event(&self) -> Option<AsyncEvent>;
}

/// A protection domain: regions and queue pairs of one domain may meet.
pub trait ProtectionDomain: Send + Sync {
    /// Allocates zeroed memory in the form that suits the provider best, and registers it. The length is rounded up to
    /// whole pages.
    ///
    /// # Errors
    /// If memory or regions run out, or the access flags break a rule.
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>>;

    /// Registers memory that exists.
    ///
    /// # Errors
    /// If the memory cannot be accessed as asked, or the provider cannot share such memory.
    ///
    /// # Safety
    /// The `len_bytes` at `addr` must stay mapped until the region is deregistered, and nothing may hold a reference
    /// to what peers are allowed to write.
    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>>;

    /// Registers memory whose first byte peers name by another address than its own. Local elements name the memory by
    /// its own addresses.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`], or if the addresses differ and the provider does not offer that.
    ///
    /// # Safety
    /// As [`ProtectionDomain::reg_mr`].
    unsafe fn reg_mr_at(&self, memory: MrMemory, access: Access) -> Result<Box<dyn RawMr>> {
        let MrMemory { addr, len_bytes, remote_addr } = memory;
        if remote_addr == addr as u64 {
            // SAFETY: contract of this function.
            return unsafe { self.reg_mr(addr, len_bytes, access) };
        }
        let what =
            format!("peers name memory at {addr:p} by that address, not by {remote_addr:#x}: use reg_mr");
        Err(Error::Unsupported { operation: "reg_mr_at", provider: "this provider", what })
    }

    /// Registers a region anew, in this domain, for other memory (address and length) or other permissions; what is
    /// `None` stays. As deregistering `mr`, which it does, and registering, but the keys stay.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`], if the region is of another provider or not of `reg_mr`, or it is not offered.
    /// Then `mr` is not for use any more: drop it.
    ///
    /// # Safety
    /// As [`ProtectionDomain::reg_mr`].
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

    /// A new queue pair in `Reset`.
    ///
    /// # Errors
    /// If a limit is exceeded, the transport is not offered, or a queue is another provider's.
    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>>;

    /// A new shared receive queue.
    ///
    /// # Errors
    /// If it is not offered or a limit is exceeded.
    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>>;

    /// A new address handle for datagrams.
    ///
    /// # Errors
    /// If it is not offered or the path is unknown.
    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>>;
}

/// What deregistration could promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Revoked {
    /// No peer accesses the memory any more.
    Now,
    /// A stopped peer is inside an access that was admitted before; the provider keeps the memory aside until the peer
    /// leaves or dies. Provider-allocated memory only; other memory is never given back in this state.
    Quarantined,
}

/// A registered memory region. Dropping it deregisters.
pub trait RawMr: Send + Sync {
    /// What it is; the same as long as it lives.
    fn attr(&self) -> &MrAttr;

    /// Its first byte. Peers and the NIC may write at any time: never make a reference of it.
    fn addr(&self) -> *mut u8 {
        self.attr().addr
    }

    /// What peers call its first byte.
    fn remote_addr(&self) -> u64 {
        self.attr().remote_addr
    }

    /// Its length in bytes.
    fn len_bytes(&self) -> usize {
        self.attr().len_bytes
    }

    /// The key of local gather/scatter elements.
    fn lkey(&self) -> u32 {
        self.attr().lkey
    }

    /// The key that peers need.
    fn rkey(&self) -> u32 {
        self.attr().rkey
    }

    /// What it allows.
    fn access(&self) -> Access {
        self.attr().access
    }

    /// Deregisters and waits, for a bounded time, for accesses under way.
    fn dereg(self: Box<Self>) -> Revoked;

    /// For the provider itself.
    fn as_any(&self) -> &dyn Any;
}

/// When a completion queue's next event comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// On the next completion.
    Any,
    /// On the next solicited or failed completion.
    Solicited,
}

/// A completion channel: where events of completion queues arrive, as a descriptor that polls readable.
pub trait CompChannel: Send + Sync {
    /// The descriptor for poll, epoll or a runtime. Non-blocking.
    fn fd(&self) -> RawFd;

    /// Takes one event: the id of the queue it is for. `None` if there is none. Taking acknowledges it.
    ///
    /// # Errors
    /// If the descriptor fails.
    fn poll_cq_event(&self) -> Result<Option<u32>>;

    /// For the provider itself.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue.
pub trait RawCq: Send {
    /// A number unique in its context; what [`CompChannel::poll_cq_event`] returns.
    fn id(&self) -> u32;

    /// Takes up to `wc.len()` completions and returns how many. Progresses everything that is attached to the queue.
    ///
    /// # Errors
    /// If the queue overran or the device failed.
    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize>;

    /// Asks for one event. Poll once more before sleeping: completions that came before make no event.
    ///
    /// # Errors
    /// If the queue has no channel.
    fn req_notify(&mut self, notify: Notify) -> Result<()>;

    /// For the provider itself.
    fn as_any(&self) -> &dyn Any;
}

/// A shared receive queue. Dropping one that queue pairs still use leaves them its receives; [`RawSrq::destroy`]
/// refuses.
pub trait RawSrq: Send {
    /// Its number; what its asynchronous events name.
    fn srq_num(&self) -> u32;

    /// Its sizes and its limit.
    ///
    /// # Errors
    /// If the device fails.
    fn query(&self) -> Result<SrqCap>;

    /// Changes its size or its limit; a refusal changes nothing.
    ///
    /// # Errors
    /// If the device cannot hold so many, or it holds more receives than it should shrink to.
    fn modify(&mut self, attr: &SrqAttr) -> Result<()>;

    /// Destroys it.
    ///
    /// # Errors
    /// If queue pairs use it (`EBUSY`); it is given back.
    fn destroy(self: Box<Self>) -> Result<(), SrqInUse>;

    /// Posts receives.
    ///
    /// # Errors
    /// See [`RawQp::post_recv`].
    ///
    /// # Safety
    /// See [`RawQp::post_recv`].
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// For the provider itself.
    fn as_any(&self) -> &dyn Any;
}

/// A shared receive queue that was not destroyed.
pub struct SrqInUse {
    /// It, unchanged.
    pub srq: Box<dyn RawSrq>,
    /// Why.
    pub source: Error,
}

impl std::fmt::Debug for SrqInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqInUse").field("source", &self.source).finish_non_exhaustive()
    }
}

/// An address handle.
pub trait AddressHandle: Send + Sync {
    /// What goes into [`crate::UdTarget::ah`].
    fn as_raw(&self) -> *const ();
}

/// A queue pair.
pub trait RawQp: Send {
    /// Its number.
    fn qp_num(&self) -> u32;

    /// Its transport.
    fn qp_type(&self) -> QpType;

    /// Its state. An error may have changed it since the last call.
    fn state(&self) -> QpState;

    /// The sizes it really has.
    fn cap(&self) -> QpCap;

    /// Changes attributes and state.
    ///
    /// # Errors
    /// If the transition is not allowed, an attribute it needs is missing, or the peer is not reachable. The state is
    /// then unchanged.
    fn modify(&mut self, attr: &QpAttr) -> Result<()>;

    /// Posts send requests in order, as one doorbell.
    ///
    /// # Errors
    /// If the queue is full or a request malformed; what came before it in the batch is posted.
    ///
    /// # Safety
    /// The memory that non-inline elements name must stay valid, and unwritten (READ: unread and unwritten), until the
    /// request's completion or one known to come after it was polled, or the queue pair was drained in error. So must a
    /// datagram's address handle, which must be of this provider.
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Whether all of these would be posted now; posts none. For interfaces that post all requests of a batch or none
    /// (`ibv_wr_complete`). A provider that only learns while it posts lets everything pass.
    ///
    /// # Errors
    /// The first that [`RawQp::post_send`] would refuse, and why.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn check_sends(&mut self, _wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }

    /// Posts receives in order.
    ///
    /// # Errors
    /// If the queue is full, a request malformed, the state `Reset`, or a shared receive queue is attached.
    ///
    /// # Safety
    /// The memory named must stay valid and untouched until the receive's completion was polled or the queue pair was
    /// drained in error.
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Whether payload of WRITEs into `mr` is placed in address order, the final byte last, so that a reader may poll
    /// on it (`ibv_query_qp_data_in_order`).
    fn places_in_order(&self, mr: &dyn RawMr) -> bool;

    /// Whether no access admitted before this pair left RTR/RTS can still touch our memory. False only while a stopped
    /// peer is inside one; memory granted to it must not be reused until then.
    fn is_quiesced(&self) -> bool;
}

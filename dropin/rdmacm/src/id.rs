//! Identifiers: the programs' handles of endpoints.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_layout::QpInitAttr;
use farcall_layout::rdmacm::{CmId, EventChannel, PathRecord};
use farcall_trace::Unacknowledged;
use farcall_wire::cm::{Ece, PortSpace, QueuePair};

use crate::connection_manager::{CmEndpoint, Id, Token};
use crate::errno::{self, Errno, to_return_value};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{address, channel, device};

/// `IBV_QPT_RC`.
const RC: u32 = 2;
/// `IBV_QPT_UD`.
pub const UD: u32 = 4;

#[repr(C)]
pub struct CmIdObject {
    /// The structure that programs read and modify.
    c: UnsafeCell<CmId>,
    pub token: Token,
    pub space: PortSpace,
    /// Number of events that the program has not acknowledged.
    pub reported: Unacknowledged,
    state: Mutex<CmIdState>,
}

/// State of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    New,
    /// It has a local address.
    Bound,
    /// It has a remote address.
    AddressResolved,
    RouteResolved,
    Listening,
    /// It has sent or received a request.
    Connecting,
}

/// Parameters of the peer.
#[derive(Clone, Copy)]
pub struct PeerParams {
    pub qp: QueuePair,
    /// GID of its port.
    pub gid: [u8; 16],
    pub mtu: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
    /// Number of READs and atomics that the peer will have outstanding.
    pub reads_in: u8,
    /// Number of READs and atomics that the peer accepts.
    pub reads_out: u8,
}

/// State of an endpoint in addition to the fields that programs see.
#[derive(Default)]
pub struct CmIdState {
    pub stage: Stage,
    /// Whether calls wait for the event that they cause (man `rdma_create_id`, with a null channel).
    pub is_sync: bool,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The traffic class.
    pub tos: u8,
    /// Whether its peer is on another host.
    pub is_remote: bool,
    /// 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub is_shared: bool,
    /// `RDMA_OPTION_ID_AFONLY`.
    pub is_v6_only: bool,
    /// The number of the first packet that the peer sends; for a datagram queue pair, of the first packet that this
    /// side sends.
    pub psn: u32,
    pub peer: Option<PeerParams>,
    /// From `rdma_create_ep`: private data for `rdma_connect`.
    pub connect_data: Vec<u8>,
    /// From `rdma_create_ep`: attributes of the queue pairs of requests.
    pub passive_qp: Option<QpInitAttr>,
    pub local_ece: Ece,
    pub remote_ece: Ece,
    /// The program was notified that the connection failed, so that it is not also notified of a rejection.
    pub has_failed: bool,
}

/// About one second: a peer that is busy or not scheduled must not count as exited.
pub const ACK_TIMEOUT: u8 = 18;

impl CmIdState {
    /// # Errors
    /// Returns `EINVAL` if the endpoint is in another state.
    pub fn require(&self, stage: Stage) -> Result<(), Errno> {
        if self.stage == stage {
            return Ok(());
        }
        let why = format_args!("the identifier is {:?}; this call needs one that is {stage:?}", self.stage);
        Err(errno::refused(libc::EINVAL, why))
    }

    /// Returns the peer's parameters.
    ///
    /// # Errors
    /// Returns `EINVAL` while there are none.
    pub fn peer(&self) -> Result<PeerParams, Errno> {
        self.peer
            .ok_or_else(|| errno::invalid("the identifier has no peer yet: no request and no reply came"))
    }

    /// Returns the local and the remote address.
    ///
    /// # Errors
    /// Returns `EINVAL` while one of them is unset.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Errno> {
        let both = self.local.zip(self.remote);
        both.ok_or_else(|| errno::invalid("the identifier has no address, or its peer has none"))
    }

    fn new() -> Self {
        let psn = RandomState::new().build_hasher().finish() as u32 & 0xff_ffff;
        Self { ack_timeout: ACK_TIMEOUT, psn, ..Self::default() }
    }
}

/// # Safety
/// `id` must have been created by [`make`] and must not be destroyed.
pub unsafe fn object<'a>(id: *mut CmId) -> &'a CmIdObject {
    // SAFETY: contract of this function: `id` is live. The C structure is the first field of its `CmIdObject`
    // (`repr(C)`). Fields that change are behind a lock, or in the `UnsafeCell`.
    unsafe { &*id.cast::<CmIdObject>() }
}

impl CmIdObject {
    /// Returns the structure that programs see.
    pub fn c(&self) -> *mut CmId {
        self.c.get()
    }

    pub fn lock_state(&self) -> MutexGuard<'_, CmIdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_datagram(&self) -> bool {
        // SAFETY: `self.c()` points into `self`; the field is set when the identifier is created and never changes.
        unsafe { (*self.c()).qp_type == UD }
    }

    /// Sets the local address that programs see.
    pub fn set_local(&self, id_state: &mut CmIdState, address: SocketAddr) {
        id_state.local = Some(address);
        // SAFETY: `self.c()` points into `self`. The program reads this field only after the call or the event that
        // reports the address.
        unsafe { (*self.c()).route.addr.src_storage = address::to_c(&address).0 };
    }

    /// Sets the peer's address that programs see.
    pub fn set_remote(&self, id_state: &mut CmIdState, address: SocketAddr) {
        id_state.remote = Some(address);
        // SAFETY: `self.c()` points into `self`. The program reads this field only after the call or the event that
        // reports the address.
        unsafe { (*self.c()).route.addr.dst_storage = address::to_c(&address).0 };
    }

    /// Returns the GID to which the peer's address was resolved.
    pub fn resolved_gid(&self) -> [u8; 16] {
        // SAFETY: `self.c()` points into `self`; only this library writes the field, in calls for this identifier.
        unsafe { (*self.c()).route.addr.ib.dgid }
    }

    /// Sets the device in the structure that programs see.
    pub fn attach(&self) -> Result<(), Errno> {
        let nic = device::device()?;
        let id = self.c();
        // SAFETY: `self.c()` points into `self`. The program reads these fields only after the call or the event that
        // attaches the device.
        unsafe {
            (*id).verbs = nic.context;
            (*id).port_num = device::PORT;
            (*id).route.addr.ib.sgid = nic.gid;
            (*id).route.addr.ib.pkey_be = 0xffff;
            if (*id).pd.is_null() {
                (*id).pd = nic.pd;
            }
        }
        Ok(())
    }
}

/// Returns the port space of a number.
///
/// # Errors
/// Returns `EPROTONOSUPPORT` for an unknown number.
pub fn space_of(ps: u32) -> Result<PortSpace, Errno> {
    PortSpace::of(ps).ok_or_else(|| {
        let why = format_args!(
            "port space {ps:#x}: there are TCP (0x106), UDP (0x111), IB (0x13f) and IPOIB (0x2)"
        );
        errno::refused(libc::EPROTONOSUPPORT, why)
    })
}

/// Returns the transport of a port space's queue pairs.
pub fn transport(space: PortSpace) -> u32 {
    match space {
        PortSpace::Udp | PortSpace::IpOverIb => UD,
        PortSpace::Tcp | PortSpace::Ib => RC,
    }
}

/// Creates the identifier of an endpoint.
pub fn make(
    token: Token,
    channel: *mut EventChannel,
    context: *mut c_void,
    space: PortSpace,
    qp_type: u32,
) -> Box<CmIdObject> {
    // SAFETY: a structure of integers and pointers, for which zero is valid.
    let mut c: CmId = unsafe { std::mem::zeroed() };
    c.channel = channel;
    c.context = context;
    c.ps = space as u32;
    c.qp_type = qp_type;
    Box::new(CmIdObject {
        c: UnsafeCell::new(c),
        token,
        space,
        reported: Unacknowledged::default(),
        state: Mutex::new(CmIdState::new()),
    })
}

/// Creates an endpoint on a channel, or with a channel of its own.
///
/// # Safety
/// `channel` must be null, or a live channel of this library.
pub unsafe fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    space: PortSpace,
    qp_type: u32,
) -> Result<*mut CmIdObject, Errno> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::create()? } else { channel };
    // SAFETY: contract of this function: the channel is live, or was just created.
    let queue = unsafe { channel::object(channel) }.queue;
    let mut manager = connection_manager()?;
    let token = manager.add_end(CmEndpoint::new(None, queue));
    let made = Box::into_raw(make(token, channel, context, space, qp_type));
    manager.end(token)?.id = Some(Id(made));
    drop(manager);
    // SAFETY: `made` was just created.
    unsafe { &*made }.lock_state().is_sync = is_sync;
    Ok(made)
}

/// # Safety
/// `id` must be a live identifier that is not used after this call.
pub unsafe fn destroy(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live.
    let of = unsafe { object(id) };
    let is_sync = of.lock_state().is_sync;
    connection_manager()?.remove_end(of.token);
    // SAFETY: contract of this function: `id` is live, and no other thread uses it. `reported.wait` returns when all
    // its events are acknowledged. The channel and the path record were made with `Box::into_raw`, and are freed only
    // here.
    unsafe {
        channel::acknowledge_last(id);
        of.reported.wait();
        if is_sync {
            channel::destroy((*id).channel);
        }
        let path: *mut PathRecord = (*id).route.path_rec;
        if !path.is_null() {
            drop(Box::from_raw(path));
        }
        drop(Box::from_raw(id.cast::<CmIdObject>()));
    }
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_create_id`.
        fn rdma_create_id(channel: *mut EventChannel, id: *mut *mut CmId, context: *mut c_void, ps: u32) -> c_int {
            // SAFETY: contract of `rdma_create_id` (man page): `channel` is null or live.
            let made = space_of(ps).and_then(|space| unsafe { create(channel, context, space, transport(space)) });
            // SAFETY: contract of `rdma_create_id` (man page): `id` points to a variable.
            to_return_value(made.map(|made| unsafe { *id = made.cast() }))
        }

        /// `man rdma_destroy_id`: waits until its events are acknowledged.
        fn rdma_destroy_id(id: *mut CmId) -> c_int {
            // SAFETY: contract of `rdma_destroy_id` (man page): `id` is live and not used after the call.
            to_return_value(unsafe { destroy(id) })
        }

        /// `man rdma_get_src_port`: big-endian.
        fn rdma_get_src_port(id: *mut CmId) -> u16 {
            // SAFETY: contract of `rdma_get_src_port` (man page): `id` is a live identifier.
            unsafe { object(id) }.lock_state().local.map_or(0, |address| address.port().to_be())
        }

        /// `man rdma_get_dst_port`: big-endian.
        fn rdma_get_dst_port(id: *mut CmId) -> u16 {
            // SAFETY: contract of `rdma_get_dst_port` (man page): `id` is a live identifier.
            unsafe { object(id) }.lock_state().remote.map_or(0, |address| address.port().to_be())
        }
    }
}

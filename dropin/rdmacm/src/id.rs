//! Identifiers: what programs hold of an end.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_layout::QpInitAttr;
use farcall_layout::rdmacm::{CmId, EventChannel, PathRecord};
use farcall_trace::Unacknowledged;
use farcall_wire::cm::{Ece, PortSpace, QueuePair};

use crate::connection_manager::{End, Id, Token};
use crate::errno::{self, Errno, answer};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{address, channel, device};

/// `IBV_QPT_RC`.
const RC: u32 = 2;
/// `IBV_QPT_UD`.
pub const UD: u32 = 4;

#[repr(C)]
pub struct IdObject {
    /// What programs look into, and change.
    c: UnsafeCell<CmId>,
    pub token: Token,
    pub space: PortSpace,
    /// Events that the program has not acknowledged.
    pub reported: Unacknowledged,
    own: Mutex<Own>,
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    New,
    /// It has an address of its own.
    Bound,
    /// It has one to go to.
    AddressResolved,
    RouteResolved,
    Listening,
    /// It asked, or was asked.
    Connecting,
}

/// What a peer said of itself.
#[derive(Clone, Copy)]
pub struct PeerTerms {
    pub qp: QueuePair,
    /// Its port's address.
    pub gid: [u8; 16],
    pub mtu: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
    /// READs and atomics that the peer will have under way.
    pub reads_in: u8,
    /// READs and atomics that it accepts.
    pub reads_out: u8,
}

/// What an end knows beside what programs see.
#[derive(Default)]
pub struct Own {
    pub stage: Stage,
    /// Whether calls wait for the event that they lead to (man `rdma_create_id`, on a channel of null).
    pub is_sync: bool,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The traffic class.
    pub tos: u8,
    /// Whether its peer is on another host.
    pub is_far: bool,
    /// 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub is_shared: bool,
    /// `RDMA_OPTION_ID_AFONLY`.
    pub is_v6_only: bool,
    /// The number of the first packet that we expect; of a datagram queue pair, that it sends.
    pub psn: u32,
    pub peer: Option<PeerTerms>,
    /// Of `rdma_create_ep`: private data for `rdma_connect`.
    pub connect_data: Vec<u8>,
    /// Of `rdma_create_ep`: what the queue pairs of requests are like.
    pub passive_qp: Option<QpInitAttr>,
    pub local_ece: Ece,
    pub remote_ece: Ece,
    /// The program was told that the connection failed: it is not also told that it was refused.
    pub has_failed: bool,
}

/// About one second: a peer that is busy, or waits for a processor, is not gone.
pub const ACK_TIMEOUT: u8 = 18;

impl Own {
    /// # Errors
    /// `EINVAL`, if the end has come further, or not so far.
    pub fn require(&self, stage: Stage) -> Result<(), Errno> {
        if self.stage == stage {
            return Ok(());
        }
        let why = format_args!("the identifier is {:?}; this call needs one that is {stage:?}", self.stage);
        Err(errno::refused(libc::EINVAL, why))
    }

    /// What the peer said.
    ///
    /// # Errors
    /// `EINVAL`, as long as it said nothing.
    pub fn peer(&self) -> Result<PeerTerms, Errno> {
        self.peer
            .ok_or_else(|| errno::invalid("the identifier has no peer yet: no request and no reply came"))
    }

    /// Where it is, and where it goes to.
    ///
    /// # Errors
    /// `EINVAL`, as long as one of them is open.
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
/// `id` must come from [`make`] and not be destroyed.
pub unsafe fn object<'a>(id: *mut CmId) -> &'a IdObject {
    // SAFETY: the C structure begins its object. Fields that change are behind a lock, or in the cell.
    unsafe { &*id.cast::<IdObject>() }
}

impl IdObject {
    /// What programs see.
    pub fn c(&self) -> *mut CmId {
        self.c.get()
    }

    pub fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_datagram(&self) -> bool {
        // SAFETY: set when it was made.
        unsafe { (*self.c()).qp_type == UD }
    }

    /// Sets the address that programs see as its own.
    pub fn show_local(&self, own: &mut Own, address: SocketAddr) {
        own.local = Some(address);
        // SAFETY: our field of the program's structure, which it reads when a call or an event tells it to.
        unsafe { (*self.c()).route.addr.src_storage = address::to_c(&address).0 };
    }

    /// Sets the address that programs see as its peer's.
    pub fn show_remote(&self, own: &mut Own, address: SocketAddr) {
        own.remote = Some(address);
        // SAFETY: as above.
        unsafe { (*self.c()).route.addr.dst_storage = address::to_c(&address).0 };
    }

    /// The address of the port that its peer's address was resolved to.
    pub fn resolved_gid(&self) -> [u8; 16] {
        // SAFETY: our field of the program's structure.
        unsafe { (*self.c()).route.addr.ib.dgid }
    }

    /// Gives it the device.
    pub fn attach(&self) -> Result<(), Errno> {
        let nic = device::device()?;
        let id = self.c();
        // SAFETY: as above.
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

/// The port space that a program names.
///
/// # Errors
/// `EPROTONOSUPPORT` for a number that is none.
pub fn space_of(ps: u32) -> Result<PortSpace, Errno> {
    PortSpace::of(ps).ok_or_else(|| {
        let why = format_args!(
            "port space {ps:#x}: there are TCP (0x106), UDP (0x111), IB (0x13f) and IPOIB (0x2)"
        );
        errno::refused(libc::EPROTONOSUPPORT, why)
    })
}

/// The transport of a port space's queue pairs.
pub fn transport(space: PortSpace) -> u32 {
    match space {
        PortSpace::Udp | PortSpace::IpOverIb => UD,
        PortSpace::Tcp | PortSpace::Ib => RC,
    }
}

/// Makes the object of an end.
pub fn make(
    token: Token,
    channel: *mut EventChannel,
    context: *mut c_void,
    space: PortSpace,
    qp_type: u32,
) -> Box<IdObject> {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut c: CmId = unsafe { std::mem::zeroed() };
    c.channel = channel;
    c.context = context;
    c.ps = space as u32;
    c.qp_type = qp_type;
    Box::new(IdObject {
        c: UnsafeCell::new(c),
        token,
        space,
        reported: Unacknowledged::default(),
        own: Mutex::new(Own::new()),
    })
}

/// Makes an end on a channel, or with one of its own.
///
/// # Safety
/// `channel` must be null or one of ours.
pub unsafe fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    space: PortSpace,
    qp_type: u32,
) -> Result<*mut IdObject, Errno> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::create()? } else { channel };
    // SAFETY: the caller's channel, or ours.
    let queue = unsafe { channel::object(channel) }.queue;
    let mut manager = connection_manager()?;
    let token = manager.add_end(End::new(None, queue));
    let made = Box::into_raw(make(token, channel, context, space, qp_type));
    manager.end(token)?.id = Some(Id(made));
    drop(manager);
    // SAFETY: just made.
    unsafe { &*made }.own().is_sync = is_sync;
    Ok(made)
}

/// # Safety
/// `id` must be the program's, who does not use it any more.
pub unsafe fn destroy(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let of = unsafe { object(id) };
    let is_sync = of.own().is_sync;
    connection_manager()?.remove_end(of.token);
    // SAFETY: the caller's object, which it uses in no other thread.
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
        drop(Box::from_raw(id.cast::<IdObject>()));
    }
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_create_id`.
        fn rdma_create_id(channel: *mut EventChannel, id: *mut *mut CmId, context: *mut c_void, ps: u32) -> c_int {
            // SAFETY: the caller's channel.
            let made = space_of(ps).and_then(|space| unsafe { create(channel, context, space, transport(space)) });
            // SAFETY: the caller's variable.
            answer(made.map(|made| unsafe { *id = made.cast() }))
        }

        /// `man rdma_destroy_id`: waits until its events are acknowledged.
        fn rdma_destroy_id(id: *mut CmId) -> c_int {
            // SAFETY: the caller's identifier.
            answer(unsafe { destroy(id) })
        }

        /// `man rdma_get_src_port`: big-endian.
        fn rdma_get_src_port(id: *mut CmId) -> u16 {
            // SAFETY: the caller's identifier.
            unsafe { object(id) }.own().local.map_or(0, |address| address.port().to_be())
        }

        /// `man rdma_get_dst_port`: big-endian.
        fn rdma_get_dst_port(id: *mut CmId) -> u16 {
            // SAFETY: the caller's identifier.
            unsafe { object(id) }.own().remote.map_or(0, |address| address.port().to_be())
        }
    }
}

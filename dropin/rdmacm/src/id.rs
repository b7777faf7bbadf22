//! Identifiers: the programs' handles of endpoints.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_layout::rdmacm::{CmId, EventChannel};
use farcall_trace::Unacknowledged;
use farcall_wire::cm::PortSpace;

use crate::errno::{self, Errno};
use crate::id_state::CmIdState;
use crate::symbols::export;
use crate::token::Token;
use crate::{address, device};

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
        id_state.set_local(address);
        // SAFETY: `self.c()` points into `self`. The program reads this field only after the call or the event that
        // reports the address.
        unsafe { (*self.c()).route.addr.src_storage = address::to_c(&address).0 };
    }

    /// Sets the peer's address that programs see.
    pub fn set_remote(&self, id_state: &mut CmIdState, address: SocketAddr) {
        id_state.set_remote(address);
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

export! {
    "RDMACM_1.0" {
        /// `man rdma_get_src_port`: big-endian.
        fn rdma_get_src_port(id: *mut CmId) -> u16 {
            // SAFETY: contract of `rdma_get_src_port` (man page): `id` is a live identifier.
            unsafe { object(id) }.lock_state().local().map_or(0, |address| address.port().to_be())
        }

        /// `man rdma_get_dst_port`: big-endian.
        fn rdma_get_dst_port(id: *mut CmId) -> u16 {
            // SAFETY: contract of `rdma_get_dst_port` (man page): `id` is a live identifier.
            unsafe { object(id) }.lock_state().remote().map_or(0, |address| address.port().to_be())
        }
    }
}

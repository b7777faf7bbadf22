//! Events as programs receive them, until they are acknowledged.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_layout::AhAttr;
use farcall_layout::rdmacm::{CmEvent, CmId, ConnParam, Param, UdParam, event as kind};
use farcall_wire::cm::ConnectionParams;

use crate::errno::{Errno, refused};
use crate::id::CmIdObject;

/// Upper limit of the private data of any message.
const DATA_BYTES: usize = 256;

/// An event, and data that it refers to until it is acknowledged.
#[repr(C)]
pub struct EventObject {
    pub event: CmEvent,
    /// The endpoint that waits for the acknowledgement.
    pub counted_on: *mut CmIdObject,
    data: [u8; DATA_BYTES],
}

impl EventObject {
    pub fn new(id: *mut CmIdObject, event: u32, status: c_int) -> Box<Self> {
        // SAFETY: a union of structures of integers and pointers, for which zero is valid.
        let param: Param = unsafe { std::mem::zeroed() };
        let event = CmEvent { id: id.cast(), listen_id: ptr::null_mut(), event, status, param };
        Box::new(Self { event, counted_on: id, data: [0; DATA_BYTES] })
    }

    /// Stores a peer's private data. Like the kernel's manager, it presents the full capacity of the message to
    /// programs, padded with zeros (man `rdma_get_cm_event`).
    fn keep(&mut self, data: &[u8], room: usize) -> (*const c_void, u8) {
        let len = data.len().min(room);
        self.data[..len].copy_from_slice(&data[..len]);
        (self.data.as_ptr().cast(), room as u8)
    }

    /// Stores the parameters that a peer offers or accepts, from the view of this endpoint: the peer's initiator depth
    /// is this side's responder resources.
    pub fn set_params(
        &mut self,
        params: &ConnectionParams,
        qp_num: u32,
        retry_count: u8,
        data: &[u8],
        room: usize,
    ) {
        let param = ConnParam {
            responder_resources: params.initiator_depth,
            initiator_depth: params.responder_resources,
            flow_control: params.flow_control.into(),
            retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq.into(),
            qp_num,
            ..ConnParam::default()
        };
        self.set_connection(param, data, room);
    }

    pub fn set_connection(&mut self, param: ConnParam, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { conn: ConnParam { private_data, private_data_len, ..param } };
    }

    pub fn set_service(&mut self, ah_attr: AhAttr, qp_num: u32, qkey: u32, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { ud: UdParam { private_data, private_data_len, ah_attr, qp_num, qkey } };
    }
}

/// Returns the result of the call that waited for an event.
///
/// # Safety
/// `event` must be an event of this library that is not acknowledged.
pub unsafe fn outcome(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: contract of this function: `event` is not acknowledged, so it is live.
    let (event, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(()),
        reason if event == kind::REJECTED => Err(refused(
            libc::ECONNREFUSED,
            format_args!("rejected, for reason {reason} (InfiniBand, 12.6.7.2)"),
        )),
        number => {
            let name =
                kind::NAMES.get(event as usize).map_or("unknown", |name| name.to_str().unwrap_or_default());
            Err(refused(number.abs(), format_args!("{name}, status {number}")))
        }
    }
}

/// # Safety
/// `event` must be an event of this library, which is not used after this call.
pub unsafe fn acknowledge(event: *mut CmEvent) {
    // SAFETY: contract of this function: `next` made `event` with `Box::into_raw`, and it is not used any more. Its
    // endpoint's identifier is live, because `create_id::destroy` waits for this acknowledgement.
    unsafe {
        let event = Box::from_raw(event.cast::<EventObject>());
        (*event.counted_on).reported.acknowledge(1);
    }
}

/// Acknowledges the event stored in a synchronous endpoint, if there is one.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn acknowledge_last(id: *mut CmId) {
    // SAFETY: contract of this function: `id` is live. The library, not the program, acknowledges the event stored in
    // a synchronous endpoint, and it is removed before.
    unsafe {
        let last = ptr::replace(&raw mut (*id).event, ptr::null_mut());
        if !last.is_null() {
            acknowledge(last);
        }
    }
}

//! Creation and destruction of endpoints with their identifiers.

use std::ffi::{c_int, c_void};

use farcall_layout::rdmacm::{CmId, EventChannel, PathRecord};
use farcall_wire::cm::PortSpace;

use crate::connection_manager::Id;
use crate::errno::{Errno, to_return_value};
use crate::id::CmIdObject;
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{channel, event_object, id};

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
    let token = manager.create_end(queue);
    let made = Box::into_raw(id::make(token, channel, context, space, qp_type));
    manager.end(token)?.set_id(Id(made));
    drop(manager);
    // SAFETY: `made` was just created.
    unsafe { &*made }.lock_state().set_sync(is_sync);
    Ok(made)
}

/// # Safety
/// `id` must be a live identifier that is not used after this call.
pub unsafe fn destroy(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live.
    let of = unsafe { id::object(id) };
    let is_sync = of.lock_state().is_sync();
    connection_manager()?.remove_end(of.token);
    // SAFETY: contract of this function: `id` is live, and no other thread uses it. `reported.wait` returns when all
    // its events are acknowledged. The channel and the path record were made with `Box::into_raw`, and are freed only
    // here.
    unsafe {
        event_object::acknowledge_last(id);
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
            let made = id::space_of(ps)
                .and_then(|space| unsafe { create(channel, context, space, id::transport(space)) });
            // SAFETY: contract of `rdma_create_id` (man page): `id` points to a variable.
            to_return_value(made.map(|made| unsafe { *id = made.cast() }))
        }

        /// `man rdma_destroy_id`: waits until its events are acknowledged.
        fn rdma_destroy_id(id: *mut CmId) -> c_int {
            // SAFETY: contract of `rdma_destroy_id` (man page): `id` is live and not used after the call.
            to_return_value(unsafe { destroy(id) })
        }
    }
}

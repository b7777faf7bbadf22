//! Migration of endpoints between event channels.

use std::ffi::c_int;

use farcall_layout::rdmacm::{CmId, EventChannel};

use crate::errno::{Errno, invalid, to_return_value};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{channel, event_object, id};

/// Moves an endpoint and its events to another channel.
///
/// # Safety
/// `id` and `to` must be live objects of this library.
unsafe fn migrate(id: *mut CmId, to: *mut EventChannel, is_sync: bool) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` and `to` are live. A synchronous endpoint's channel belongs to this
    // library, and is not used after it is destroyed here.
    unsafe {
        let of = id::object(id);
        connection_manager()?.migrate(of.token, channel::object(to).queue)?;
        let was_sync = of.lock_state().set_sync(is_sync);
        if was_sync {
            event_object::acknowledge_last(id);
            channel::destroy((*id).channel);
        }
        (*id).channel = to;
        // When this returns, all events of the old channel have been acknowledged.
        of.reported.wait();
    }
    Ok(())
}

/// Makes an endpoint synchronous.
///
/// # Safety
/// `id` must be live, and not synchronous yet.
pub unsafe fn to_own_channel(id: *mut CmId) -> Result<(), Errno> {
    let to = channel::create()?;
    // SAFETY: contract of this function: `id` is live. `to` was just created, and is destroyed only if the migration
    // failed.
    unsafe { migrate(id, to, true).inspect_err(|_| channel::destroy(to)) }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_migrate_id`: to a channel, or to synchronous calls.
        fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
            // SAFETY: contract of `rdma_migrate_id` (man page): `id` is live, and `channel` is null or live.
            to_return_value(unsafe {
                // Not inside the `match`, which would hold the lock.
                let is_sync = id::object(id).lock_state().is_sync();
                match (is_sync, channel.is_null()) {
                    (true, true) => Err(invalid("the identifier is synchronous already")),
                    (false, true) => to_own_channel(id),
                    (_, false) => migrate(id, channel, false),
                }
            })
        }
    }
}

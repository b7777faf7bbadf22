//! From one event channel to another.

use std::ffi::c_int;

use farcall_layout::rdmacm::{CmId, EventChannel};

use crate::errno::{Errno, answer, invalid};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{channel, id};

/// Moves an end and its events.
///
/// # Safety
/// `id` and `to` must be the program's, or ours.
unsafe fn migrate(id: *mut CmId, to: *mut EventChannel, is_sync: bool) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let of = id::object(id);
        connection_manager()?.migrate(of.token, channel::object(to).queue)?;
        let was_sync = std::mem::replace(&mut of.own().is_sync, is_sync);
        if was_sync {
            channel::acknowledge_last(id);
            channel::destroy((*id).channel);
        }
        (*id).channel = to;
        // Events of the old channel are over when this returns.
        of.reported.wait();
    }
    Ok(())
}

/// Makes an end synchronous.
///
/// # Safety
/// `id` must be ours or the program's, and not synchronous yet.
pub unsafe fn to_own_channel(id: *mut CmId) -> Result<(), Errno> {
    let to = channel::create()?;
    // SAFETY: the caller's promise.
    unsafe { migrate(id, to, true).inspect_err(|_| channel::destroy(to)) }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_migrate_id`: to a channel, or to synchronous calls.
        fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
            // SAFETY: the caller's identifier and channel.
            answer(unsafe {
                // Not in the match, which would hold the lock.
                let is_sync = id::object(id).own().is_sync;
                match (is_sync, channel.is_null()) {
                    (true, true) => Err(invalid("the identifier is synchronous already")),
                    (false, true) => to_own_channel(id),
                    (_, false) => migrate(id, channel, false),
                }
            })
        }
    }
}

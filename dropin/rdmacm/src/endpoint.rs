//! Identifiers that are created together with all their resources, and accepted in one call.

use std::ffi::c_int;
use std::ptr;

use farcall_layout::rdmacm::{AddrInfo, CmEvent, CmId, addr_flags, event as kind};
use farcall_layout::{Pd, QpInitAttr};

use crate::bind::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::connect::bytes_of;
use crate::errno::{Errno, check, invalid, to_return_value};
use crate::event::next_event;
use crate::event_object::outcome;
use crate::symbols::export;
use crate::{create_id, id, qp};

/// Timeout of the resolution of an address and of a route, which return without delay.
const RESOLVE_MS: c_int = 2000;

/// Prepares a listening endpoint.
///
/// # Safety
/// The same as for `rdma_create_ep` (man page).
unsafe fn prepare_passive(
    id: *mut CmId,
    at: &AddrInfo,
    pd: *mut Pd,
    init: Option<QpInitAttr>,
) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live and the addresses in `at` are valid (`man rdma_create_ep`).
    unsafe {
        check(rdma_bind_addr(id, at.ai_src_addr))?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        id::object(id).lock_state().set_passive_qp(init);
    }
    Ok(())
}

/// Prepares a connecting endpoint.
///
/// # Safety
/// The same as for `rdma_create_ep` (man page).
unsafe fn prepare_active(
    id: *mut CmId,
    to: &AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live, and the addresses in `to`, `pd` and `init` are valid or null
    // (`man rdma_create_ep`).
    unsafe {
        check(rdma_resolve_addr(id, to.ai_src_addr, to.ai_dst_addr, RESOLVE_MS))?;
        check(rdma_resolve_route(id, RESOLVE_MS))?;
        if let Some(init) = init.as_mut() {
            init.qp_type = to.ai_qp_type as u32;
            qp::create(id, pd, init)?;
        }
        let len = u8::try_from(to.ai_connect_len)
            .map_err(|_| invalid(format_args!("ai_connect_len {}: at most 255", to.ai_connect_len)))?;
        let data = bytes_of(to.ai_connect, len, usize::from(u8::MAX))?;
        id::object(id).lock_state().set_connect_data(data);
    }
    Ok(())
}

/// # Safety
/// The same as for `rdma_create_ep` (man page).
unsafe fn create(at: &AddrInfo, pd: *mut Pd, init: *mut QpInitAttr) -> Result<*mut CmId, Errno> {
    let space = id::space_of(at.ai_port_space as u32)?;
    // SAFETY: contract of this function: its arguments are valid by `man rdma_create_ep`. `id` was just created, and
    // is destroyed only on an error, when the program does not have it.
    unsafe {
        let id: *mut CmId =
            create_id::create(ptr::null_mut(), ptr::null_mut(), space, at.ai_qp_type as u32)?.cast();
        let prepared = if at.ai_flags & addr_flags::PASSIVE != 0 {
            let init =
                init.as_ref().map(|init| QpInitAttr { qp_type: at.ai_qp_type as u32, ..ptr::read(init) });
            prepare_passive(id, at, pd, init)
        } else {
            prepare_active(id, at, pd, init)
        };
        if let Err(number) = prepared {
            destroy(id);
            return Err(number);
        }
        Ok(id)
    }
}

/// # Safety
/// `id` must be a live identifier that is not used after this call.
unsafe fn destroy(id: *mut CmId) {
    // SAFETY: contract of this function: `id` is live and not used after the call.
    unsafe {
        qp::destroy(id);
        qp::destroy_srq(id);
        if let Err(number) = create_id::destroy(id) {
            tracing::debug!("an end stays: error {number}");
        }
    }
}

/// Waits for a request. Its endpoint gets a queue pair as specified in `rdma_create_ep`.
///
/// # Safety
/// `listener` must be a live identifier of the program.
unsafe fn next_request(listener: *mut CmId) -> Result<*mut CmId, Errno> {
    // SAFETY: contract of this function: `listener` is live. `event` and its identifier are live until the event is
    // acknowledged.
    unsafe {
        let of = id::object(listener);
        if !of.lock_state().is_sync() {
            return Err(invalid("the identifier has an event channel: take the event"));
        }
        let event = next_event(listener)?;
        match equip(listener, event) {
            Ok(()) => {
                let id = (*event).id;
                (*id).event = event;
                Ok(id)
            }
            Err(number) => {
                (*listener).event = event;
                Err(number)
            }
        }
    }
}

/// # Safety
/// `listener` must be a live identifier, and `event` an event of it that is not acknowledged.
unsafe fn equip(listener: *mut CmId, event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: contract of this function: `listener` is live and `event` is not acknowledged, so its identifier is
    // live.
    unsafe {
        outcome(event)?;
        if (*event).event != kind::CONNECT_REQUEST {
            return Err(invalid("the event is no request to connect"));
        }
        let wanted = id::object(listener).lock_state().passive_qp().map(|init| ptr::read(init));
        match wanted {
            Some(mut init) => qp::create((*event).id, (*listener).pd, &mut init),
            None => Ok(()),
        }
    }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_create_ep`.
        fn rdma_create_ep(id: *mut *mut CmId, res: *mut AddrInfo, pd: *mut Pd, attr: *mut QpInitAttr) -> c_int {
            // SAFETY: contract of `rdma_create_ep` (man page): `res` is valid, `pd` and `attr` are null or valid, and
            // `id` points to a variable.
            to_return_value(unsafe { create(&*res, pd, attr).map(|made| *id = made) })
        }

        /// `man rdma_destroy_ep`.
        fn rdma_destroy_ep(id: *mut CmId) {
            // SAFETY: contract of `rdma_destroy_ep` (man page): `id` is live and not used after the call.
            unsafe { destroy(id) }
        }

        /// `man rdma_get_request`.
        fn rdma_get_request(listener: *mut CmId, id: *mut *mut CmId) -> c_int {
            // SAFETY: contract of `rdma_get_request` (man page): `listener` is live, and `id` points to a variable.
            to_return_value(unsafe { next_request(listener).map(|new| *id = new) })
        }
    }
}

//! Creation of completion queues.

use std::ffi::{c_int, c_void};

use farcall_verbs::CqInitAttr;

use crate::cq::CqObject;
use crate::symbols::export;
use crate::{channel, context, cq_ex, errno, live, traced};
use farcall_layout::{CompChannel, Context, Cq, CqEx, CqInitAttrEx};

/// Supported bits of `wc_flags`: everything up to the completion's time stamps, without VLANs, flows and tag matching.
const OFFERED: u64 = 0b1000_1111_1111;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// Single-threaded, overrun ignored: both are always the case.
const FLAGS: u32 = 0b11;

/// See `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_ex(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
    // SAFETY: contract of `ibv_create_cq_ex` (man page): `attr` is valid.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
    if attr.comp_mask & !MASK_FLAGS != 0 || attr.wc_flags & !OFFERED != 0 || flags & !FLAGS != 0 {
        let (mask, fields) = (attr.comp_mask, attr.wc_flags);
        return errno::null(errno::refused(
            libc::EOPNOTSUPP,
            format_args!("comp_mask {mask:#x}, wc_flags {fields:#x} or flags {flags:#x}: not offered"),
        ));
    }
    if attr.cqe == 0 || attr.comp_vector != 0 {
        let (cqe, comp_vector) = (attr.cqe, attr.comp_vector);
        return errno::null(errno::refused(
            libc::EINVAL,
            format_args!("cqe {cqe}, comp_vector {comp_vector}"),
        ));
    }
    // SAFETY: contract of `ibv_create_cq_ex` (man page): `context` and the objects in `attr` are valid.
    unsafe { create(context, attr.cqe, attr.cq_context, attr.channel) }
        .map_or_else(errno::null, <*mut _>::cast)
}

/// # Safety
/// The pointers must be valid objects of the program, or null where the man page permits it.
unsafe fn create(
    context: *mut Context,
    cqe: u32,
    cq_context: *mut c_void,
    comp_channel: *mut CompChannel,
) -> Result<*mut CqObject, c_int> {
    if !comp_channel.is_null() {
        live::CHANNELS.check(comp_channel)?;
        // SAFETY: the channel is live (checked above).
        if unsafe { (*comp_channel).context } != context {
            return Err(errno::refused(libc::EINVAL, format_args!("the channel belongs to another context")));
        }
    }
    // SAFETY: contract of this function: `context` is open.
    let of = unsafe { context::object(context) };
    // SAFETY: the channel, if not null, is live (checked above).
    let through = (!comp_channel.is_null()).then(|| unsafe { channel::object(comp_channel) });
    let attr = CqInitAttr { cqe, channel: through.map(|channel| &*channel.provider) };
    let provider = of.provider.create_cq(&attr).map_err(|error| errno::number(&error))?;
    if let Some(channel) = through {
        channel.uses.add();
    }
    let id = provider.id();
    let base = Cq {
        context,
        channel: comp_channel,
        cq_context,
        handle: id,
        cqe: cqe as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let mut functions = cq_ex::table(base);
    if farcall_trace::is_on() {
        traced::cq_table(&mut functions);
    }
    Ok(CqObject::create(functions, provider))
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_cq`.
        fn ibv_create_cq(
            context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel, comp_vector: c_int,
        ) -> *mut Cq {
            if cqe <= 0 || comp_vector != 0 {
                return errno::null(errno::refused(libc::EINVAL, format_args!("cqe {cqe}, comp_vector {comp_vector}")));
            }
            // SAFETY: contract of `ibv_create_cq` (man page): `context` is open, and `channel` is null or an address
            // that `create` checks.
            unsafe { create(context, cqe as u32, cq_context, channel) }.map_or_else(errno::null, <*mut _>::cast)
        }
    }
}

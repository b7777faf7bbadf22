//! Asynchronous events.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_verbs::AsyncEventKind as Kind;

use crate::context::{self, ContextObject};
use crate::symbols::export;
use crate::{channel, cq, errno, qp, srq};
use farcall_ibv::abi::whole::{AsyncEvent, Context};

/// `enum ibv_event_type`.
const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const QP_REQ_ERR: c_int = 2;
const QP_ACCESS_ERR: c_int = 3;
const COMM_EST: c_int = 4;
const SQ_DRAINED: c_int = 5;
const DEVICE_FATAL: c_int = 8;
const PORT_ACTIVE: c_int = 9;
const PORT_ERR: c_int = 10;
const SRQ_ERR: c_int = 14;
const SRQ_LIMIT_REACHED: c_int = 15;
const QP_LAST_WQE_REACHED: c_int = 16;

/// An event as C sees it; `None` if its object is gone.
fn translate(of: &ContextObject, event: &farcall_verbs::AsyncEvent) -> Option<AsyncEvent> {
    let number = event.element;
    let (event_type, element): (c_int, *mut c_void) = match event.kind {
        Kind::CqErr => (CQ_ERR, cq::find_async(&of.registry, number)?.0.cast()),
        Kind::QpFatal => (QP_FATAL, qp::find(of, number)?.0.cast()),
        Kind::QpReqErr => (QP_REQ_ERR, qp::find(of, number)?.0.cast()),
        Kind::QpAccessErr => (QP_ACCESS_ERR, qp::find(of, number)?.0.cast()),
        Kind::CommEst => (COMM_EST, qp::find(of, number)?.0.cast()),
        Kind::SqDrained => (SQ_DRAINED, qp::find(of, number)?.0.cast()),
        Kind::QpLastWqeReached => (QP_LAST_WQE_REACHED, qp::find(of, number)?.0.cast()),
        Kind::SrqLimitReached => (SRQ_LIMIT_REACHED, srq::find(of, number)?.0.cast()),
        Kind::SrqErr => (SRQ_ERR, srq::find(of, number)?.0.cast()),
        Kind::PortActive => (PORT_ACTIVE, ptr::without_provenance_mut(number as usize)),
        Kind::PortErr => (PORT_ERR, ptr::without_provenance_mut(number as usize)),
        _ => (DEVICE_FATAL, ptr::null_mut()),
    };
    Some(AsyncEvent { element, event_type })
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_get_async_event`: -1 and `errno`.
        fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
            // SAFETY: the caller's context.
            let (of, fd) = unsafe { (context::object(context), (*context).async_fd) };
            loop {
                if let Err(number) = channel::wait_readable(fd) {
                    errno::set(number);
                    return -1;
                }
                while let Some(found) = of.provider.poll_async_event() {
                    if let Some(translated) = translate(of, &found) {
                        // SAFETY: the caller's structure.
                        unsafe { event.write(translated) };
                        return 0;
                    }
                }
            }
        }

        /// `man ibv_get_async_event`.
        fn ibv_ack_async_event(event: *mut AsyncEvent) {
            // SAFETY: the caller's event, of an object that lives until this.
            unsafe {
                let element = (*event).element;
                match (*event).event_type {
                    CQ_ERR => cq::object(element.cast()).async_events.acknowledge(1),
                    QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR | COMM_EST | SQ_DRAINED | QP_LAST_WQE_REACHED => {
                        qp::object(element.cast()).events.acknowledge(1);
                    }
                    SRQ_ERR | SRQ_LIMIT_REACHED => srq::object(element.cast()).events.acknowledge(1),
                    _ => {}
                }
            }
        }
    }
}

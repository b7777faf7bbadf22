//! Completion of UC requests that the target did not accept.

use farcall_verbs::{Access, SendFlags, WcStatus};

use super::QpCore;
use super::request::Request;
use crate::shm_transport::flight::Event;

/// Returns the status of a UC request that was not executed. A request that the target cannot accept is dropped
/// silently; the target's memory and receive stay untouched, and the next message is independent of it (IBA 9.9.3,
/// class D). Only a local fault is reported, and an operation that UC does not define.
#[cold]
pub(super) fn end_of_dropped(core: &QpCore, request: &Request<'_>) -> WcStatus {
    if request.opcode.returns_data() {
        return WcStatus::LOC_QP_OP_ERR;
    }
    let inline = request.flags.contains(SendFlags::INLINE);
    if !inline && !core.allows(request.sges, Access::empty()) {
        return WcStatus::LOC_PROT_ERR;
    }
    core.stats.dropped.increment();
    core.stats.record(Event::Dropped as u64, request.opcode.0.into());
    WcStatus::SUCCESS
}

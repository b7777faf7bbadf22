//! What becomes of a request over UC that the target did not take: nobody hears of it.

use farcall_verbs::{Access, SendFlags, WcStatus};

use super::QpCore;
use super::request::Request;
use crate::host::flight::Event;

/// How a UC request ends that was not executed. What the target cannot take is dropped silently, its memory and its
/// receive untouched, the next message is judged anew (IBA 9.9.3, class D); only a fault of our own is told.
#[cold]
pub(super) fn end_of_dropped(core: &QpCore, request: &Request<'_>) -> WcStatus {
    let inline = request.flags.contains(SendFlags::INLINE);
    if !inline && !core.allows(request.sges, Access::empty()) {
        return WcStatus::LOC_PROT_ERR;
    }
    core.stats.dropped.increment();
    core.stats.record(Event::Dropped as u64, request.opcode.0.into());
    WcStatus::SUCCESS
}

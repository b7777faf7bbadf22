//! A batch of calls: the handler executes one call after another, and their results form the batch's result.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counters::Counters;
use crate::error::HandlerError;
use crate::responder::handler::{Call, Handler, Reply, panic_text};
use crate::wire::Status;
use crate::wire::batch::{BatchedCalls, ENTRY_HEAD_BYTES};

/// Maximum bytes that a call of a batch occupies in addition to its result: its head, and padding.
const ENTRY_COST_BYTES: usize = ENTRY_HEAD_BYTES + 8;

/// Executes `calls`, which arrived as the message `whole`. A call that fails has its error as its result; the others
/// are still executed.
///
/// # Errors
/// Returns an error if not even the calls' errors would fit into the result. No call was executed then.
pub(super) fn execute<H: Handler>(
    handler: &mut H,
    counters: &Counters,
    whole: &Call<'_>,
    calls: BatchedCalls<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), HandlerError> {
    if !reply.reserve(calls.len() * ENTRY_COST_BYTES) {
        let message = format!("a batch of {} calls", calls.len());
        return Err(HandlerError { status: Status::RESULT_TOO_LARGE, message });
    }
    counters.batches.increment();
    for (call_id, (method, payload)) in (whole.call_id..).zip(calls) {
        let entry = reply.begin_entry();
        let call = Call { method, payload, call_id, ..*whole };
        let outcome = catch_unwind(AssertUnwindSafe(|| handler.handle(&call, reply)));
        counters.calls.increment();
        let is_late = reply.end_call_of_batch(matches!(outcome, Ok(Ok(()))));
        let status = match outcome {
            Ok(Ok(())) if is_late => {
                reply.clear();
                Status::DEFERRED
            }
            Ok(Ok(())) if reply.has_overflowed() => refuse(counters, reply, Status::RESULT_TOO_LARGE, ""),
            Ok(Ok(())) => Status::OK,
            Ok(Err(HandlerError { status, message })) => refuse(counters, reply, status, &message),
            Err(panic) => {
                counters.panics.increment();
                refuse(counters, reply, Status::PANICKED, panic_text(&*panic))
            }
        };
        reply.end_entry(entry, status);
    }
    Ok(())
}

/// Makes the error's text the entry's result, if there is room for it.
#[cold]
fn refuse(counters: &Counters, reply: &mut Reply<'_>, status: Status, text: &str) -> Status {
    counters.errors.increment();
    reply.clear();
    reply.extend_from_slice(text.as_bytes());
    if reply.has_overflowed() {
        reply.clear();
    }
    status
}

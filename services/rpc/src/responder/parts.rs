//! Requests that arrive in parts, and results that are returned in segments.

use farcall_verbs::{Clock, Nanos};

use super::execute::Answer;
use super::serve::Engine;
use super::session::Assembly;
use super::{Handler, ServerConnection};
use crate::wire::{RESPONSE_HEADER_BYTES, RequestFlags, RequestHeader, ResponseFlags, Status};

/// Result of handling a part of a request.
pub(super) enum Part {
    /// The part is acknowledged or refused.
    Answer(Answer),
    /// The request is complete.
    Last(Assembly),
}

impl<H: Handler, C: Clock> Engine<H, C> {
    /// Handles a part of a long request.
    pub(super) fn take_part(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
        now: Nanos,
    ) -> Result<Part, String> {
        let (offset, total_bytes, bytes) =
            part_numbers(&self.message[header.first().request_header_bytes()..])?;
        if total_bytes > self.config.request_bytes_max as usize {
            let text = format!("{total_bytes} bytes; at most {}", self.config.request_bytes_max);
            return Ok(Part::Answer(self.refuse(end, Status::REQUEST_TOO_LARGE, &text)));
        }
        let session = &mut end.session;
        if offset == 0 {
            session.assembly = Some(Assembly {
                call_id: header.call_id,
                total_bytes,
                bytes: self.buffered.count(Vec::with_capacity(total_bytes)),
                received_bytes: 0,
                is_refused: false,
                began: now,
            });
        }
        let Some(mut assembly) = session.assembly.take() else {
            return Err(format!("message {}: a part without a beginning", header.seq.0));
        };
        let fits = assembly.call_id == header.call_id
            && assembly.total_bytes == total_bytes
            && assembly.received_bytes == offset
            && bytes.len() <= total_bytes - offset
            && !bytes.is_empty();
        if !fits {
            return Err(format!("message {}: a part that does not follow the one before", header.seq.0));
        }
        assembly.received_bytes += bytes.len();
        let buffered = self.buffered.bytes() + bytes.len();
        if assembly.is_refused || buffered > self.config.buffers_bytes_max {
            // Further parts may be in flight: they belong to this request until all of it has arrived.
            (assembly.is_refused, assembly.bytes) = (true, self.buffered.count(Vec::new()));
            session.assembly = (assembly.received_bytes < total_bytes).then_some(assembly);
            let text = format!("{buffered} bytes are kept for all clients");
            return Ok(Part::Answer(self.refuse(end, Status::OVERLOADED, &text)));
        }
        assembly.bytes.append(bytes);
        if assembly.received_bytes == total_bytes {
            return Ok(Part::Last(assembly));
        }
        session.assembly = Some(assembly);
        Ok(Part::Answer(Answer::ACK))
    }

    /// Returns a segment of a stored result, or releases the result.
    pub(super) fn continue_result(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
    ) -> Result<Answer, String> {
        let (offset, longest, rest) = part_numbers(&self.message[header.first().request_header_bytes()..])?;
        if !rest.is_empty() {
            return Err(format!("message {}: a continuation with a payload", header.seq.0));
        }
        let session = &mut end.session;
        let kept = session.find_retained(header.call_id);
        if header.flags.contains(RequestFlags::CANCEL) {
            if let Some(kept) = kept {
                session.release(kept);
            } else if session.cancel_deferred(header.call_id) {
                self.counters.cancelled.increment();
            }
            return Ok(Answer::ACK);
        }
        let Some(kept) = kept else {
            return Ok(self.refuse(end, Status::RESULT_GONE, ""));
        };
        let bytes = &session.retained[kept].bytes;
        let total_bytes = bytes.len();
        if offset > total_bytes {
            return Err(format!("message {}: asks for byte {offset} of {total_bytes}", header.seq.0));
        }
        let len_bytes = longest.min(session.responses.capacity()).min(total_bytes - offset);
        let at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &bytes[offset..offset + len_bytes]);
        let is_last = offset + len_bytes == total_bytes;
        if is_last {
            // The last segments are in slots, which retain them until the client has received them.
            session.release(kept);
        }
        let flags = if is_last { ResponseFlags::empty() } else { ResponseFlags::MORE };
        Ok(Answer { flags, ..Answer::ok(len_bytes, total_bytes) })
    }
}

/// Decodes the two numbers at the start of a part or of a request for a segment.
fn part_numbers(payload: &[u8]) -> Result<(usize, usize, &[u8]), String> {
    let Some((numbers, rest)) = payload.split_first_chunk::<8>() else {
        return Err("a part or continuation without its numbers".into());
    };
    let [a, b, c, d, e, f, g, h] = *numbers;
    let first = u32::from_le_bytes([a, b, c, d]) as usize;
    Ok((first, u32::from_le_bytes([e, f, g, h]) as usize, rest))
}

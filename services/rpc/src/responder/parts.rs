//! Requests that arrive in parts, and results that are returned in segments.

use farcall_verbs::Nanos;

use super::buffered::{Buffered, BufferedTotal};
use crate::config::ResponderConfig;
use crate::wire::{RequestHeader, Status};

/// Result of handling a part of a request.
pub(crate) enum Part {
    /// The part is acknowledged.
    Acknowledged,
    /// The part is refused.
    Refused(Status, String),
    /// The request is complete.
    Last(LongRequest),
}

/// A complete request that arrived in parts.
pub(crate) struct LongRequest {
    pub bytes: Buffered,
    /// When its first part arrived.
    pub began: Nanos,
}

/// The request of a session that arrives in parts.
#[derive(Default)]
pub(crate) struct Reassembly(Option<Assembly>);

struct Assembly {
    call_id: u64,
    total_bytes: usize,
    /// The bytes received so far; empty if the request was refused.
    bytes: Buffered,
    /// Number of bytes received.
    received_bytes: usize,
    is_refused: bool,
    began: Nanos,
}

impl Reassembly {
    /// Discards an incomplete request.
    #[inline]
    pub fn discard(&mut self) {
        self.0 = None;
    }

    /// Handles a part of a long request.
    ///
    /// # Errors
    /// Returns a description of the violation if the part does not follow the one before.
    pub fn take_part(
        &mut self,
        header: &RequestHeader,
        payload: &[u8],
        config: &ResponderConfig,
        total: &BufferedTotal,
        now: Nanos,
    ) -> Result<Part, String> {
        let (offset, total_bytes, bytes) = part_numbers(payload)?;
        if total_bytes > config.request_bytes_max as usize {
            let text = format!("{total_bytes} bytes; at most {}", config.request_bytes_max);
            return Ok(Part::Refused(Status::REQUEST_TOO_LARGE, text));
        }
        if offset == 0 {
            self.0 = Some(Assembly {
                call_id: header.call_id,
                total_bytes,
                bytes: total.count(Vec::with_capacity(total_bytes)),
                received_bytes: 0,
                is_refused: false,
                began: now,
            });
        }
        let Some(mut assembly) = self.0.take() else {
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
        let buffered = total.bytes() + bytes.len();
        if assembly.is_refused || buffered > config.buffers_bytes_max {
            // Further parts may be in flight: they belong to this request until all of it has arrived.
            (assembly.is_refused, assembly.bytes) = (true, total.count(Vec::new()));
            self.0 = (assembly.received_bytes < total_bytes).then_some(assembly);
            let text = format!("{buffered} bytes are kept for all clients");
            return Ok(Part::Refused(Status::OVERLOADED, text));
        }
        assembly.bytes.append(bytes);
        if assembly.received_bytes == total_bytes {
            return Ok(Part::Last(LongRequest { bytes: assembly.bytes, began: assembly.began }));
        }
        self.0 = Some(assembly);
        Ok(Part::Acknowledged)
    }
}

/// Results of a session that are fetched in segments, with the ids of their calls.
#[derive(Default)]
pub(crate) struct RetainedResults {
    results: Vec<(u64, Buffered)>,
    bytes: usize,
}

impl RetainedResults {
    /// Returns the length of all results in bytes.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores a result.
    pub fn push(&mut self, call_id: u64, result: Buffered) {
        self.bytes += result.len();
        self.results.push((call_id, result));
    }

    /// Returns a result.
    pub fn get(&self, call_id: u64) -> Option<&[u8]> {
        self.results.iter().find(|(id, _)| *id == call_id).map(|(_, result)| &**result)
    }

    /// Releases a result. Returns whether there was one.
    pub fn release(&mut self, call_id: u64) -> bool {
        let Some(at) = self.results.iter().position(|(id, _)| *id == call_id) else { return false };
        self.bytes -= self.results.swap_remove(at).1.len();
        true
    }
}

/// Decodes the two numbers at the start of a part or of a request for a segment.
///
/// # Errors
/// Returns a description of the violation if the payload is too short for them.
pub(super) fn part_numbers(payload: &[u8]) -> Result<(usize, usize, &[u8]), String> {
    let Some((numbers, rest)) = payload.split_first_chunk::<8>() else {
        return Err("a part or continuation without its numbers".into());
    };
    let [a, b, c, d, e, f, g, h] = *numbers;
    let first = u32::from_le_bytes([a, b, c, d]) as usize;
    Ok((first, u32::from_le_bytes([e, f, g, h]) as usize, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Form, RequestFlags, Seq};

    fn part(call_id: u64, offset: u32, total_bytes: u32, bytes: &[u8]) -> (RequestHeader, Vec<u8>) {
        let payload = [&offset.to_le_bytes(), &total_bytes.to_le_bytes(), bytes].concat();
        let header = RequestHeader {
            seq: Seq::FIRST,
            len_bytes: payload.len() as u32,
            form: Form::Full,
            method: 1,
            flags: RequestFlags::PART,
            consumed: Seq::FIRST,
            call_id,
            session: 0,
            incarnation: 0,
            deadline_us: 0,
            crc: 0,
            trace_id: 0,
        };
        (header, payload)
    }

    fn take(
        parts: &mut Reassembly,
        total: &BufferedTotal,
        part: (RequestHeader, Vec<u8>),
    ) -> Result<Part, String> {
        let config = ResponderConfig::default().buffers_bytes_max(8).request_bytes_max(64);
        parts.take_part(&part.0, &part.1, &config, total, Nanos(7))
    }

    #[test]
    fn joins_parts_that_follow_each_other() {
        let (mut parts, total) = (Reassembly::default(), BufferedTotal::default());
        assert!(matches!(take(&mut parts, &total, part(1, 0, 5, b"abc")), Ok(Part::Acknowledged)));
        let Ok(Part::Last(whole)) = take(&mut parts, &total, part(1, 3, 5, b"de")) else {
            panic!("incomplete")
        };
        assert_eq!((&whole.bytes[..], whole.began, total.bytes()), (&b"abcde"[..], Nanos(7), 5));
        assert!(take(&mut parts, &total, part(1, 3, 5, b"de")).is_err(), "a part without a beginning");
        assert!(matches!(take(&mut parts, &total, part(2, 0, 5, b"abc")), Ok(Part::Acknowledged)));
        for (id, offset, bytes) in [(1, 3, 5), (2, 2, 5), (2, 3, 6)] {
            assert!(take(&mut parts, &total, part(id, offset, bytes, b"de")).is_err());
        }
    }

    #[test]
    fn refuses_all_parts_of_a_request_that_exceeds_the_buffers() {
        let (mut parts, total) = (Reassembly::default(), BufferedTotal::default());
        for (offset, bytes) in [(0, &b"0123456789"[..]), (10, b"a"), (11, b"b")] {
            let taken = take(&mut parts, &total, part(1, offset, 12, bytes));
            assert!(matches!(taken, Ok(Part::Refused(Status::OVERLOADED, _))), "offset {offset}");
        }
        assert!(take(&mut parts, &total, part(1, 12, 12, b"")).is_err(), "the request has ended");
        let long = take(&mut parts, &total, part(1, 0, 65, b"a"));
        assert!(matches!(long, Ok(Part::Refused(Status::REQUEST_TOO_LARGE, _))));
        assert_eq!(total.bytes(), 0);
    }

    #[test]
    fn counts_retained_results_until_they_are_released() {
        let (mut retained, total) = (RetainedResults::default(), BufferedTotal::default());
        retained.push(1, total.count(vec![1; 3]));
        retained.push(2, total.count(vec![2; 4]));
        assert_eq!((retained.bytes(), retained.get(2), retained.get(3)), (7, Some(&[2; 4][..]), None));
        assert!(retained.release(1) && !retained.release(1));
        assert_eq!((retained.bytes(), total.bytes()), (4, 4));
    }
}

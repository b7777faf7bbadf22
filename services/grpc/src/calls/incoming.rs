//! Handling of received frames.

use bytes::Bytes;
use tonic::{Code, Status};

use super::call::RemoteEnd;
use super::{Accepted, Calls, Role};
use crate::frame::{Frame, FrameError, Head, Path, metadata};
use crate::options::WINDOW_BYTES_MAX;

/// Maximum number of methods that a server runs, in multiples of the number of open calls that it allows. The excess
/// are calls that their clients cancelled and whose methods are still running.
const CANCELLED_FACTOR: usize = 2;

impl Calls {
    /// Handles a frame.
    ///
    /// # Errors
    /// Returns an error if the peer violates the protocol. The connection must then be closed, because no further
    /// frame of the peer can be interpreted.
    pub fn handle_frame(&mut self, head: Head, payload: &[u8]) -> Result<(), FrameError> {
        let number = head.call;
        match (&self.role, Frame::parse(head, payload)?) {
            (Role::Server { .. }, Frame::Call { path, metadata, data, is_end }) => {
                self.handle_call(number, path, metadata, data, is_end)
            }
            (Role::Client { .. }, Frame::Response { http_status, metadata, trailers, data, is_end }) => {
                let answer = (http_status, metadata::read(metadata)?);
                self.handle_response(number, answer)?;
                self.handle_data(number, data)?;
                if is_end {
                    self.handle_end(number, trailers)?;
                } else if !trailers.is_empty() {
                    return Err(FrameError("trailers in the middle of an answer"));
                }
                Ok(())
            }
            (_, Frame::Data { data, is_end }) => {
                if is_end && matches!(self.role, Role::Client { .. }) {
                    return Err(FrameError("an answer that ends without trailers"));
                }
                if data.is_empty() && !is_end {
                    return Err(FrameError("a frame of data without any"));
                }
                self.handle_data(number, data)?;
                if is_end {
                    self.handle_end(number, &[])?;
                }
                Ok(())
            }
            (Role::Client { .. }, Frame::Trailers { trailers }) => self.handle_end(number, trailers),
            (_, Frame::Reset { code, reason }) => self.handle_reset(number, code, reason),
            (_, Frame::Window { more_bytes }) => self.handle_window(number, more_bytes),
            (Role::Client { permits, .. }, Frame::Goodbye { .. }) => {
                // Tasks that wait for a permit fail.
                permits.close();
                self.is_draining = true;
                Ok(())
            }
            _ => Err(FrameError("a frame of the wrong side")),
        }
    }

    fn handle_call(
        &mut self,
        number: u16,
        path: Path<'_>,
        block: &[u8],
        data: &[u8],
        is_end: bool,
    ) -> Result<(), FrameError> {
        let is_open = self.table.get(usize::from(number)).is_some_and(|call| call.is_open);
        if number >= self.ours.calls_max || is_open {
            return Err(FrameError("a call with the number of none that may be begun"));
        }
        let metadata = metadata::read(block)?;
        let Role::Server { known, accepted, running } = &mut self.role else {
            return Err(FrameError("a frame of the wrong side"));
        };
        let (path, method) = known.find(path)?;
        let uri = path.clone().into();
        let is_crowded = *running + accepted.len() >= CANCELLED_FACTOR * usize::from(self.ours.calls_max);
        let id = self.begin(number);
        self.handle_data(number, data)?;
        if is_end {
            self.handle_end(number, &[])?;
        }
        if self.is_draining {
            self.reset(id, Code::Unavailable, "the server takes no more calls; this one did not run");
        } else if is_crowded {
            self.reset(id, Code::ResourceExhausted, "too many abandoned calls have not ended yet");
        } else {
            let inbox = &mut self.table[usize::from(number)].inbox;
            let method = method.filter(|_| is_end);
            let is_taken = is_end && method.is_none();
            let request = is_taken.then(|| Bytes::from(std::mem::take(&mut inbox.bytes)));
            if let Role::Server { accepted, .. } = &mut self.role {
                accepted.push(Accepted { id, uri, metadata, request, method });
            }
        }
        Ok(())
    }

    fn handle_response(&mut self, number: u16, answer: (u16, http::HeaderMap)) -> Result<(), FrameError> {
        let call = self.table.get_mut(usize::from(number)).filter(|call| call.is_open && call.was_opened);
        let call = call.ok_or(FrameError("an answer to no call"))?;
        if call.inbox.is_answered || call.inbox.is_ended {
            return Err(FrameError("an answer that begins twice"));
        }
        if http::StatusCode::from_u16(answer.0).is_err() {
            return Err(FrameError("an impossible HTTP status"));
        }
        call.inbox.is_answered = true;
        call.inbox.answer = call.inbox.has_reader.then_some(answer);
        self.wakes.extend(call.inbox.waker.take());
        Ok(())
    }

    fn handle_data(&mut self, number: u16, data: &[u8]) -> Result<(), FrameError> {
        let is_client = matches!(self.role, Role::Client { .. });
        let call = self.table.get_mut(usize::from(number)).filter(|call| call.is_open);
        let call = call.ok_or(FrameError("data of no call"))?;
        let inbox = &mut call.inbox;
        if inbox.is_ended || is_client && !inbox.is_answered {
            return Err(FrameError("data before the beginning of a call, or after its end"));
        }
        let len = data.len() as u32;
        inbox.window_left =
            inbox.window_left.checked_sub(len).ok_or(FrameError("more data than this end has room for"))?;
        if inbox.has_reader {
            inbox.append(data, self.ours.window_bytes);
            self.wakes.extend(inbox.waker.take());
        } else {
            self.on_read(number, len);
        }
        Ok(())
    }

    fn handle_end(&mut self, number: u16, trailers: &[u8]) -> Result<(), FrameError> {
        let is_client = matches!(self.role, Role::Client { .. });
        let ending = match trailers {
            [] => RemoteEnd::End,
            trailers if trailers == metadata::SUCCESS => RemoteEnd::Success,
            trailers => RemoteEnd::Trailers(metadata::read(trailers)?),
        };
        let call = self.table.get_mut(usize::from(number)).filter(|call| call.is_open);
        let call = call.ok_or(FrameError("the end of no call"))?;
        if call.inbox.is_ended || is_client && !call.inbox.is_answered {
            return Err(FrameError("the end of a call that has ended, or was not answered"));
        }
        call.inbox.end(ending, &mut self.wakes);
        self.peer_ended(number);
        Ok(())
    }

    /// Handles the end of the peer's side. A server that has responded reads no more of the request, so a client stops
    /// sending it.
    fn peer_ended(&mut self, number: u16) {
        let call = &mut self.table[usize::from(number)];
        if matches!(self.role, Role::Client { .. }) && !call.outbox.is_ended && call.outbox.reset.is_none() {
            call.outbox.clear(&mut self.wakes);
            call.outbox.reset = Some((Code::Ok, String::new()));
            self.queue(number);
        }
        self.release_if_ended(number);
    }

    fn handle_reset(&mut self, number: u16, code: u8, reason: &str) -> Result<(), FrameError> {
        let place = usize::from(number);
        let is_client = matches!(self.role, Role::Client { .. });
        let Some(call) = self.table.get_mut(place).filter(|call| call.is_open) else {
            let is_late = !is_client && number < self.ours.calls_max;
            return if is_late { Ok(()) } else { Err(FrameError("the end of no call")) };
        };
        if is_client {
            if call.inbox.is_ended || !call.was_opened {
                return Err(FrameError("the end of a call that has ended"));
            }
            // Only trailers can report success.
            let code = Some(Code::from_i32(code.into())).filter(|code| *code != Code::Ok);
            let status = Status::new(code.unwrap_or(Code::Unknown), reason);
            call.inbox.end(RemoteEnd::Reset(status), &mut self.wakes);
            self.peer_ended(number);
            return Ok(());
        }
        let cancelled = Status::cancelled("the client gave the call up");
        call.inbox.bytes = Vec::new();
        call.inbox.end(RemoteEnd::Reset(cancelled), &mut self.wakes);
        call.outbox.clear(&mut self.wakes);
        if !call.outbox.is_ended {
            // The client reuses the number only after the end of this side.
            call.outbox.reset = Some((Code::Cancelled, String::new()));
            self.queue(number);
        }
        self.release_if_ended(number);
        Ok(())
    }

    fn handle_window(&mut self, number: u16, more_bytes: u32) -> Result<(), FrameError> {
        let Some(call) = self.table.get_mut(usize::from(number)).filter(|call| call.is_open) else {
            return Ok(());
        };
        let left = call.outbox.window_left.checked_add(more_bytes).filter(|left| *left <= WINDOW_BYTES_MAX);
        call.outbox.window_left = left.ok_or(FrameError("a window that is longer than allowed"))?;
        if call.outbox.is_full {
            self.queue(number);
        }
        Ok(())
    }

    /// Records that `len_bytes` bytes of this call were read or discarded: the peer may send as many again.
    pub(super) fn on_read(&mut self, number: u16, len_bytes: u32) {
        let is_server = matches!(self.role, Role::Server { .. });
        let call = &mut self.table[usize::from(number)];
        let inbox = &mut call.inbox;
        inbox.unreported_bytes += len_bytes;
        // A server sends no frame of a call after its last one.
        let is_over = inbox.is_ended || is_server && call.outbox.is_ended;
        if !is_over && inbox.unreported_bytes >= self.ours.window_bytes.div_ceil(2) {
            call.outbox.credit += std::mem::take(&mut inbox.unreported_bytes);
            self.queue(number);
        }
    }
}

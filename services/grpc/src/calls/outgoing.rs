//! Composition of frames to send.

use bytes::Bytes;
use tonic::Code;

use super::call::{InitialHeaders, LocalEnd};
use super::{Calls, Role};
use crate::frame::{Kind, PAYLOAD_BYTES_MAX, Writer, metadata, reason};

/// Maximum length in bytes of data that is copied after its frame head. Longer data is sent from its own buffer.
const COPIED_BYTES_MAX: usize = 1 << 10;
/// Length in bytes from which on frames of several calls are sent without gathering more.
const GATHERED_BYTES_MAX: usize = 8 << 10;

/// Frames being written into the stream: complete ones, and the data of the last of them.
#[derive(Default)]
pub(crate) struct Outbound {
    pub head: Vec<u8>,
    pub body: Bytes,
    pub sent: usize,
}

impl Outbound {
    pub fn is_pending(&self) -> bool {
        self.sent < self.len_bytes()
    }

    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Returns the unsent bytes, in one or two segments.
    pub fn segments(&self) -> [&[u8]; 2] {
        let of_body = self.sent.saturating_sub(self.head.len());
        [self.head.get(self.sent..).unwrap_or_default(), &self.body[of_body..]]
    }

    /// Records that `len_bytes` more bytes were sent.
    pub fn advance(&mut self, len_bytes: usize) {
        self.sent += len_bytes;
        if !self.is_pending() {
            self.head.clear();
            self.body = Bytes::new();
            self.sent = 0;
        }
    }

    /// Returns whether the frames are long enough to be sent.
    pub fn is_enough(&self) -> bool {
        !self.body.is_empty() || self.head.len() >= GATHERED_BYTES_MAX
    }

    fn append(&mut self, data: Bytes) {
        if data.len() <= COPIED_BYTES_MAX {
            self.head.extend_from_slice(&data);
        } else {
            self.body = data;
        }
    }
}

impl Calls {
    /// Composes frames of the queued calls in round-robin order, until they are long enough to be sent.
    pub fn emit(&mut self, out: &mut Outbound) {
        if let Some(why) = self.goodbye.take() {
            let mut writer = Writer::begin(&mut out.head, Kind::Goodbye, 0);
            writer.put(reason(&why).as_bytes());
            writer.finish(0);
        }
        while !out.is_enough() {
            let Some(number) = self.queued.pop_front() else { return };
            self.emit_of(number, out);
        }
    }

    fn emit_of(&mut self, number: u16, out: &mut Outbound) {
        let call = &mut self.table[usize::from(number)];
        call.outbox.is_queued = false;
        if !call.is_open {
            return;
        }
        if let Some((code, why)) = call.outbox.reset.take() {
            let mut writer = Writer::begin(&mut out.head, Kind::Reset, number);
            writer.put(&[code_of(code)]);
            writer.put(reason(&why).as_bytes());
            writer.finish(0);
            call.outbox.is_ended = true;
            return self.release_if_ended(number);
        }
        let credit = std::mem::take(&mut call.outbox.credit);
        if credit > 0 {
            call.inbox.window_left += credit;
            let mut writer = Writer::begin(&mut out.head, Kind::Window, number);
            writer.put(&credit.to_le_bytes());
            writer.finish(0);
        }
        if call.outbox.is_full && !call.outbox.is_ended {
            self.emit_part(number, out);
        }
    }

    /// Composes one frame of the submitted part.
    fn emit_part(&mut self, number: u16, out: &mut Outbound) {
        let call = &mut self.table[usize::from(number)];
        let outbox = &mut call.outbox;
        let window = outbox.window_left as usize;
        if outbox.headers.is_none() && window == 0 && !outbox.data.is_empty() {
            // The call is queued again when the peer sends a window update.
            return;
        }
        let mut writer = match (outbox.headers.take(), &mut self.role) {
            (Some(InitialHeaders::Call(path, map)), Role::Client { numbers, .. }) => {
                let mut writer = Writer::begin(&mut out.head, Kind::Call, number);
                writer.path(numbers.name(&path));
                writer.block(|out| metadata::write(&map, out));
                writer
            }
            (Some(InitialHeaders::Response(http_status, map)), _) => {
                let mut writer = Writer::begin(&mut out.head, Kind::Response, number);
                writer.u16(http_status);
                writer.block(|out| metadata::write(&map, out));
                let trailers_max = match &outbox.ending {
                    Some(LocalEnd::Trailers(map)) => metadata::weight(map),
                    _ => 0,
                };
                let room = (PAYLOAD_BYTES_MAX - writer.len_bytes() - 2).saturating_sub(trailers_max);
                match outbox.ending.take_if(|_| outbox.data.len() <= room.min(window)) {
                    Some(going) => {
                        writer.end();
                        outbox.is_ended = true;
                        writer.block(|out| {
                            if let LocalEnd::Trailers(map) = going {
                                metadata::write(&map, out);
                            }
                        });
                    }
                    None => writer.block(|_| {}),
                }
                writer
            }
            _ if outbox.data.is_empty() && matches!(outbox.ending, Some(LocalEnd::Trailers(_))) => {
                let mut writer = Writer::begin(&mut out.head, Kind::Trailers, number);
                if let Some(LocalEnd::Trailers(map)) = outbox.ending.take() {
                    writer.put_with(|out| metadata::write(&map, out));
                }
                outbox.is_ended = true;
                writer
            }
            _ => Writer::begin(&mut out.head, Kind::Data, number),
        };
        call.was_opened = true;
        let len = outbox.data.len().min(window).min(PAYLOAD_BYTES_MAX - writer.len_bytes());
        let piece = outbox.data.split_to(len);
        outbox.window_left -= len as u32;
        if outbox.data.is_empty() && outbox.ending.take_if(|ending| matches!(ending, LocalEnd::End)).is_some()
        {
            writer.end();
            outbox.is_ended = true;
        }
        writer.finish(len);
        out.append(piece);
        if outbox.data.is_empty() && outbox.ending.is_none() {
            outbox.is_full = false;
            self.wakes.extend(outbox.waker.take());
            self.release_if_ended(number);
        } else {
            self.queue(number);
        }
    }
}

/// Converts a status code to its wire representation. All codes are below 256.
fn code_of(code: Code) -> u8 {
    code as i32 as u8
}

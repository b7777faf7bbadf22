//! A batch of requests that a program builds call by call (`man ibv_wr_post`).

use std::ffi::c_int;
use std::ops::Range;

use farcall_verbs::{AtomicTarget, RawQp, SendFlags, SendWr, Sge, UdTarget, WrOpcode};

use crate::{errno, region_names};
use farcall_layout::DataBuf;

/// Operation of a request and its target; its elements or inline bytes are in the batch.
#[derive(Clone)]
pub enum Kind {
    Send,
    Write { remote_addr: u64, rkey: u32 },
    Read { remote_addr: u64, rkey: u32 },
    Atomic { opcode: WrOpcode, target: AtomicTarget },
}

#[derive(Clone)]
struct Pending {
    wr_id: u64,
    flags: SendFlags,
    imm_be: Option<u32>,
    kind: Kind,
    to: Option<UdTarget>,
    sges: Range<usize>,
    /// Range of the inline bytes in the batch.
    inline_at: Option<Range<usize>>,
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`. Its memory is reused.
#[derive(Default)]
pub struct Batch {
    pending: Vec<Pending>,
    sges: Vec<Sge>,
    inline_bytes: Vec<u8>,
    /// All requests, while they are posted.
    chain: Vec<SendWr<'static>>,
    error: Option<c_int>,
    /// `true` if the batch was begun and not ended.
    is_open: bool,
}

impl Batch {
    /// Begins a batch. If one is already open, both fail, and none is posted.
    pub fn start(&mut self) {
        self.pending.clear();
        self.sges.clear();
        self.inline_bytes.clear();
        self.error = std::mem::replace(&mut self.is_open, true).then_some(libc::EINVAL);
    }

    /// Ends the batch without posting it.
    pub fn abandon(&mut self) {
        self.is_open = false;
    }

    /// Adds a request.
    pub fn begin(&mut self, wr_id: u64, flags: u32, kind: Kind, imm_be: Option<u32>) {
        let Some(flags) = SendFlags::from_bits(flags) else {
            self.error = Some(libc::EOPNOTSUPP);
            return;
        };
        let sges = self.sges.len()..self.sges.len();
        // The function that sets the data determines whether a request is inline.
        let flags = flags - SendFlags::INLINE;
        self.pending.push(Pending { wr_id, flags, imm_be, kind, to: None, sges, inline_at: None });
    }

    /// Returns the requests as they will be posted, for a trace.
    pub fn requests(&mut self) -> impl Iterator<Item = SendWr<'_>> {
        self.place_inline();
        self.pending.iter().map(|pending| pending.request(&self.sges))
    }

    fn last(&mut self) -> Option<&mut Pending> {
        if self.pending.is_empty() {
            self.error = Some(libc::EINVAL);
        }
        self.pending.last_mut()
    }

    /// Sets the target of the last request, a datagram.
    pub fn set_target(&mut self, to: UdTarget) {
        if let Some(last) = self.last() {
            last.to = Some(to);
        }
    }

    /// Sets the elements of the last request.
    pub fn set_sges(&mut self, sges: &[Sge]) {
        let from = self.sges.len();
        self.sges.extend_from_slice(sges);
        if region_names::are_any() {
            region_names::translate(&mut self.sges[from..]);
        }
        let range = from..self.sges.len();
        if let Some(last) = self.last() {
            last.sges = range;
        }
    }

    /// Copies the inline data of the last request.
    ///
    /// # Safety
    /// The buffers must be valid for reads.
    pub unsafe fn set_inline(&mut self, buffers: &[DataBuf]) {
        let from = self.inline_bytes.len();
        for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
            // SAFETY: contract of this function: the buffer is valid for reads.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) };
            self.inline_bytes.extend_from_slice(bytes);
        }
        let range = from..self.inline_bytes.len();
        if let Some(last) = self.last() {
            last.flags |= SendFlags::INLINE;
            last.inline_at = Some(range);
        }
    }

    /// Creates the element of each inline request, after the buffer of inline bytes has stopped growing.
    fn place_inline(&mut self) {
        for pending in &mut self.pending {
            if let Some(bytes) = pending.inline_at.take() {
                let addr = self.inline_bytes[bytes.clone()].as_ptr().expose_provenance() as u64;
                let at = self.sges.len();
                self.sges.push(Sge { addr, length: bytes.len() as u32, lkey: 0 });
                pending.sges = at..at + 1;
            }
        }
    }

    /// Ends the batch and posts it. Returns an error number, and posts nothing, if one request is refused.
    pub fn complete(&mut self, provider: &mut dyn RawQp) -> c_int {
        if !std::mem::take(&mut self.is_open) {
            return errno::refused(libc::EINVAL, format_args!("no batch was begun"));
        }
        if let Some(number) = self.error {
            return errno::refused(number, format_args!("a request of the batch was malformed"));
        }
        self.place_inline();
        let posted = match &self.pending[..] {
            [] => Ok(()),
            // SAFETY: contract of `ibv_wr_complete` (man page): the memory of the request stays valid until its
            // completion. Inline bytes are in the batch until this function returns.
            [alone] => unsafe { provider.post_send(&[alone.request(&self.sges)]) },
            all => {
                self.chain.clear();
                self.chain.extend(all.iter().map(|pending| {
                    let request = pending.request(&self.sges);
                    // SAFETY: extends only the lifetime. The copy is read only in this function, and the elements in
                    // `self.sges` are not changed before `start` clears them.
                    unsafe { std::mem::transmute::<SendWr<'_>, SendWr<'static>>(request) }
                }));
                // SAFETY: contract of `ibv_wr_complete` (man page): the memory of the requests stays valid until their
                // completions. Inline bytes are in the batch until this function returns.
                unsafe { provider.check_sends(&self.chain).and_then(|()| provider.post_send(&self.chain)) }
            }
        };
        posted.map_or_else(|error| errno::number(&error.source), |()| 0)
    }
}

impl Pending {
    fn request<'a>(&self, sges: &'a [Sge]) -> SendWr<'a> {
        let sges = &sges[self.sges.clone()];
        let request = match (&self.kind, self.to) {
            (Kind::Send, Some(to)) => SendWr::send_to(self.wr_id, sges, to),
            (Kind::Send, None) => SendWr::send(self.wr_id, sges),
            (Kind::Write { remote_addr, rkey }, _) => SendWr::write(self.wr_id, sges, *remote_addr, *rkey),
            (Kind::Read { remote_addr, rkey }, _) => SendWr::read(self.wr_id, sges, *remote_addr, *rkey),
            (Kind::Atomic { opcode, target }, _) => SendWr::atomic(*opcode, self.wr_id, sges, *target),
        };
        let mut request = request.with_flags(self.flags);
        if let Some(imm_be) = self.imm_be {
            request = request.with_imm(0);
            request.imm_data_be = imm_be;
        }
        request
    }
}

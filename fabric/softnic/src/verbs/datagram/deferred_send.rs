//! Requests that are posted while the send queue is drained (SQD, IBA 10.3.1.5). They wait for RTS.

use farcall_verbs::{SendFlags, SendWr, Sge, WrOpcode};

use super::AddressRoute;
use crate::shm_transport::qp::gather_to_vec;

/// Destination of a datagram.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    /// Service level of the path.
    pub(super) sl: u8,
    pub(super) route: AddressRoute,
}

/// A send request whose form was checked.
#[derive(Clone, Copy)]
pub(super) struct CheckedRequest<'sg> {
    pub(super) wr_id: u64,
    pub(super) flags: SendFlags,
    pub(super) opcode: WrOpcode,
    pub(super) imm_be: u32,
    pub(super) to: Destination,
    pub(super) sges: &'sg [Sge],
    pub(super) len_bytes: u64,
}

impl<'sg> CheckedRequest<'sg> {
    pub(super) fn new(wr: &SendWr<'sg>, to: Destination, len_bytes: u64) -> Self {
        let (wr_id, flags, opcode, imm_be) = (wr.wr_id, wr.send_flags, wr.opcode, wr.imm_data_be);
        Self { wr_id, flags, opcode, imm_be, to, sges: wr.sges(), len_bytes }
    }
}

/// A request posted in SQD. Inline data is copied, because it is not valid later; other payload is read when it is
/// sent.
pub(super) struct DeferredSend {
    request: CheckedRequest<'static>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

impl DeferredSend {
    /// # Safety
    /// The elements of an inline request must be readable.
    pub(super) unsafe fn new(request: &CheckedRequest<'_>) -> Self {
        let (mut sges, mut inline) = (request.sges.to_vec(), Vec::new());
        if request.flags.contains(SendFlags::INLINE) {
            // SAFETY: by the contract of this function the elements of an inline request are readable.
            unsafe { gather_to_vec(&mut inline, request.sges) };
            sges.clear();
            let addr = inline.as_mut_ptr().expose_provenance() as u64;
            sges.push(Sge { addr, length: inline.len() as u32, lkey: 0 });
        }
        Self { request: CheckedRequest { sges: &[], ..*request }, sges, inline }
    }

    pub(super) fn request(&self) -> CheckedRequest<'_> {
        debug_assert!(self.inline.is_empty() || self.sges[0].length as usize == self.inline.len());
        CheckedRequest { sges: &self.sges, ..self.request }
    }
}

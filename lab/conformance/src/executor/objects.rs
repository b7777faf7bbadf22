//! The objects of a case on a provider in this process, and the calls that access only them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farcall_verbs::{
    AddressHandle, CompChannel, Error, PostError, ProtectionDomain, RawCq, RawMr, RawQp, RawSrq, RecvWr,
    Revoked, SendFlags, SendWr, UdTarget, Wc, with_sources,
};

use super::call::{Answer, Call, Handle, Reason, RecvRequest, Refusal, SendRequest, Target};
use super::memory::Backing;

/// A region and the memory below it, if the provider did not allocate that. Overlapping regions share their memory.
pub(super) struct Region {
    // Dropped before the memory.
    pub(super) mr: Option<Box<dyn RawMr>>,
    pub(super) addr: *mut u8,
    pub(super) len: usize,
    pub(super) backing: Option<Rc<Backing>>,
}

/// Fields are dropped in this order: objects before those that they refer to.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) qps: BTreeMap<Handle, Box<dyn RawQp>>,
    pub(super) srqs: BTreeMap<Handle, Box<dyn RawSrq>>,
    pub(super) ahs: BTreeMap<Handle, Box<dyn AddressHandle>>,
    pub(super) mrs: BTreeMap<Handle, Region>,
    pub(super) cqs: BTreeMap<Handle, Box<dyn RawCq>>,
    pub(super) channels: BTreeMap<Handle, Arc<dyn CompChannel>>,
    pub(super) pds: BTreeMap<Handle, Arc<dyn ProtectionDomain>>,
}

/// Reason why a call failed.
pub(super) enum Failure {
    Provider(Error),
    Posting(PostError),
    /// The machine does not have such memory.
    Memory(String),
    /// The case or the machine is faulty.
    Harness(String),
}

pub(super) type Done = Result<Answer, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Provider(error)
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::Posting(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Harness(error.to_string())
    }
}

impl Failure {
    pub(super) fn into_refusal(self, call: &Call) -> Refusal {
        let (posted, error) = match self {
            Self::Provider(error) => (0, error),
            Self::Posting(PostError { posted, source }) => (posted, *source),
            Self::Memory(text) => {
                return Refusal { reason: Reason::Unsupported, ..Refusal::harness(call.name(), text) };
            }
            Self::Harness(text) => return Refusal::harness(call.name(), text),
        };
        let reason = match error {
            Error::Unsupported { .. } => Reason::Unsupported,
            Error::Exhausted { .. } => Reason::Exhausted,
            _ => Reason::Other,
        };
        Refusal { call: call.name().into(), reason, text: with_sources(&error), posted }
    }
}

/// Returns the object that a case names, or an error if there is none.
pub(super) fn found<T>(object: Option<T>, what: &str, handle: Handle) -> Result<T, Failure> {
    object.ok_or_else(|| Failure::Harness(format!("no {what} {handle}")))
}

impl Objects {
    pub(super) fn pd(&self, handle: Handle) -> Result<&dyn ProtectionDomain, Failure> {
        found(self.pds.get(&handle), "domain", handle).map(|pd| &**pd)
    }

    pub(super) fn channel(&self, handle: Handle) -> Result<&dyn CompChannel, Failure> {
        found(self.channels.get(&handle), "channel", handle).map(|channel| &**channel)
    }

    pub(super) fn cq(&self, handle: Handle) -> Result<&dyn RawCq, Failure> {
        found(self.cqs.get(&handle), "completion queue", handle).map(|cq| &**cq)
    }

    pub(super) fn cq_mut(&mut self, handle: Handle) -> Result<&mut Box<dyn RawCq>, Failure> {
        found(self.cqs.get_mut(&handle), "completion queue", handle)
    }

    pub(super) fn qp_mut(&mut self, handle: Handle) -> Result<&mut Box<dyn RawQp>, Failure> {
        found(self.qps.get_mut(&handle), "queue pair", handle)
    }

    pub(super) fn srq(&self, handle: Handle) -> Result<&dyn RawSrq, Failure> {
        found(self.srqs.get(&handle), "shared receive queue", handle).map(|srq| &**srq)
    }

    /// Returns the address of `len` bytes in a region; also of a deregistered one whose memory still exists.
    pub(super) fn bytes_at(&self, mr: Handle, offset: u64, len: usize) -> Result<*mut u8, Failure> {
        let region = found(self.mrs.get(&mr), "region", mr)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset.checked_add(len).is_none_or(|end| end > region.len) {
            let text = format!("{len} bytes at {offset} of a region of {}", region.len);
            return Err(Failure::Harness(text));
        }
        Ok(region.addr.wrapping_add(offset))
    }

    pub(super) fn destroy(&mut self, handle: Handle) -> Done {
        if let Some(srq) = self.srqs.remove(&handle) {
            return srq.destroy().map(|()| Answer::Done).map_err(|in_use| {
                self.srqs.insert(handle, in_use.srq);
                in_use.source.into()
            });
        }
        let is_found = self.qps.remove(&handle).is_some()
            || self.ahs.remove(&handle).is_some()
            || self.mrs.remove(&handle).is_some()
            || self.cqs.remove(&handle).is_some()
            || self.channels.remove(&handle).is_some()
            || self.pds.remove(&handle).is_some();
        found(is_found.then_some(Answer::Done), "object", handle)
    }

    pub(super) fn dereg(&mut self, mr: Handle) -> Done {
        let region = found(self.mrs.get_mut(&mr), "region", mr)?;
        let raw = found(region.mr.take(), "registered region", mr)?;
        let revoked = raw.dereg() == Revoked::Now;
        if region.backing.is_none() {
            // The memory was the provider's, and was freed by the deregistration.
            self.mrs.remove(&mr);
        }
        Ok(Answer::Revoked(revoked))
    }

    pub(super) fn post_send(&mut self, qp: Handle, requests: &[SendRequest]) -> Done {
        let is_inline = |wr: &&SendRequest| wr.flags.contains(SendFlags::INLINE);
        for sge in requests.iter().filter(is_inline).flat_map(|wr| &wr.sges) {
            // Inline data is the only case in which a provider reads memory without checking a key.
            let owned = self.mrs.values().any(|region| {
                let from = region.addr as u64;
                sge.addr >= from && sge.addr + u64::from(sge.length) <= from + region.len as u64
            });
            if !owned {
                return Err(Failure::Harness("inline data outside of every region".into()));
            }
        }
        let wrs = requests.iter().map(|request| self.send_wr(request)).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: a provider accesses memory only as keys permit, except inline data, which lies in a region as
        // checked above. Keys refer to regions in `self.mrs`, which deregister before they free their memory;
        // deregistration revokes the keys. Other memory that a request names is rejected by its key, which the cases
        // test. Address handles are in `self.ahs`, which is dropped after the queue pairs.
        unsafe { self.qp_mut(qp)?.post_send(&wrs) }?;
        Ok(Answer::Done)
    }

    fn send_wr<'a>(&self, request: &'a SendRequest) -> Result<SendWr<'a>, Failure> {
        let (wr_id, list) = (request.wr_id, &request.sges[..]);
        let mut wr = match request.target {
            Target::Connection => SendWr::send(wr_id, list),
            Target::Memory(target) => SendWr::write(wr_id, list, target.remote_addr, target.rkey),
            Target::Atomic(target) => SendWr::atomic(request.opcode, wr_id, list, target),
            Target::Datagram { ah, qpn, qkey } => {
                let ah = found(self.ahs.get(&ah), "address handle", ah)?;
                let to = UdTarget { ah: ah.as_raw(), remote_qpn: qpn, remote_qkey: qkey };
                SendWr::send_to(wr_id, list, to)
            }
        };
        wr.opcode = request.opcode;
        wr.imm_data_be = request.imm.to_be();
        wr.send_flags = request.flags;
        Ok(wr)
    }

    pub(super) fn post_recv(&mut self, queue: Handle, requests: &[RecvRequest]) -> Done {
        let wrs: Vec<RecvWr<'_>> =
            requests.iter().map(|request| RecvWr::new(request.wr_id, &request.sges)).collect();
        // SAFETY: a provider writes only to memory that keys permit. Keys refer to regions in `self.mrs`, which
        // deregister before they free their memory; deregistration revokes the keys. Other memory that a receive names
        // is rejected by its key, which the cases test.
        unsafe {
            match self.srqs.get_mut(&queue) {
                Some(srq) => srq.post_recv(&wrs),
                None => self.qp_mut(queue)?.post_recv(&wrs),
            }
        }?;
        Ok(Answer::Done)
    }

    pub(super) fn poll(&mut self, cq: Handle, max: u32) -> Done {
        let mut wcs = vec![Wc::default(); max as usize];
        let taken = self.cq_mut(cq)?.poll(&mut wcs)?;
        let wcs = wcs.get(..taken).ok_or_else(|| Error::invalid("poll_cq", "more than asked for"))?;
        Ok(Answer::Completions(wcs.to_vec()))
    }
}

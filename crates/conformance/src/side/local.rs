//! An end in this process: a provider's context and the objects of a case.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, AtomicTarget, CompChannel, Context, CqInitAttr, Error, Gid, GidChoice,
    Notify, PostError, ProtectionDomain, QpAttr, QpInitAttr, RawCq, RawMr, RawQp, RawSrq, RecvWr, Revoked,
    SendFlags, SendWr, Sge, SrqAttr, SrqInitAttr, UdTarget, Wc, WrOpcode,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Side;
use super::call::{
    About, Answer, Call, Completion, Cq, Event, Handle, Memory, Mr, Piece, Qp, QpMake, Reason, RecvRequest,
    Refusal, SendRequest, Target,
};
use super::memory::Backing;

/// A region and the memory under it, if that is ours.
struct Region {
    // Dropped before the memory.
    mr: Option<Box<dyn RawMr>>,
    addr: *mut u8,
    len: usize,
    _backing: Option<Backing>,
}

/// Dropped in this order: what names others first.
#[derive(Default)]
struct Objects {
    qps: BTreeMap<Handle, Box<dyn RawQp>>,
    srqs: BTreeMap<Handle, Box<dyn RawSrq>>,
    ahs: BTreeMap<Handle, Box<dyn AddressHandle>>,
    mrs: BTreeMap<Handle, Region>,
    cqs: BTreeMap<Handle, Box<dyn RawCq>>,
    channels: BTreeMap<Handle, Arc<dyn CompChannel>>,
    pds: BTreeMap<Handle, Arc<dyn ProtectionDomain>>,
}

/// Sleeps until a descriptor is readable, at most so many milliseconds; whether it is.
pub type Sleep = Box<dyn Fn(RawFd, u32) -> std::io::Result<bool>>;

/// An end on a provider in this process.
pub struct Local {
    sleep: Sleep,
    objects: Objects,
    next: Handle,
    context: Arc<dyn Context>,
    provider: &'static str,
}

type Done = Result<Answer, Refusal>;

fn lost(call: &str, what: &str, handle: Handle) -> Refusal {
    Refusal::harness(call, format!("no {what} {handle}"))
}

fn refusal(call: &str, error: &Error) -> Refusal {
    let reason = match error {
        Error::InvalidArgument { .. } => Reason::Invalid,
        Error::InvalidState { .. } => Reason::State,
        Error::Unsupported { .. } => Reason::Unsupported,
        Error::Exhausted { .. } => Reason::Exhausted,
        Error::Peer { .. } => Reason::Peer,
        _ => Reason::Os,
    };
    Refusal { call: call.into(), reason, text: error.to_string(), posted: 0 }
}

/// Finds an object or says that the case named a wrong one.
macro_rules! object {
    ($map:expr, $call:expr, $what:literal, $handle:expr, $get:ident) => {
        $map.$get($handle).ok_or_else(|| lost($call, $what, *$handle))
    };
}

impl Local {
    /// An end on an opened device.
    pub fn new(provider: &'static str, context: Arc<dyn Context>) -> Self {
        Self::with_sleep(provider, context, Box::new(sleep_in_kernel))
    }

    /// An end whose descriptors are not the kernel's.
    pub fn with_sleep(provider: &'static str, context: Arc<dyn Context>, sleep: Sleep) -> Self {
        Self { objects: Objects::default(), next: 0, context, provider, sleep }
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    fn about(&self) -> Result<About, Error> {
        let device = self.context.query_device()?;
        let port = self.context.query_port(1)?;
        let (gid_index, gid) = self.reachable_gid()?;
        Ok(About {
            provider: self.provider.into(),
            ops: [device.rc.bits(), device.uc.bits(), device.ud.bits()],
            max_qp_wr: device.max_qp_wr,
            max_sge: device.max_sge,
            max_cqe: device.max_cqe,
            max_qp: device.max_qp,
            max_inline_data: device.max_inline_data,
            max_qp_rd_atom: device.max_qp_rd_atom,
            active_mtu: port.active_mtu as u32,
            lid: port.lid,
            gid: gid.0,
            gid_index,
        })
    }

    /// The GID to be reached under, and its index.
    fn reachable_gid(&self) -> Result<(u8, Gid), Error> {
        let link_layer = self.context.query_port(1)?.link_layer;
        let choice = GidChoice::automatic(link_layer, self.context.query_gid_table(1)?)?;
        let index = u8::try_from(choice.entry.index)
            .map_err(|_| Error::invalid("choose GID", "the index has more than eight bits"))?;
        Ok((index, choice.entry.gid))
    }

    fn add_region(&mut self, mr: Box<dyn RawMr>, backing: Option<Backing>) -> Answer {
        let handle = self.handle();
        let about = Mr {
            handle,
            addr: mr.addr() as u64,
            len: mr.len_bytes() as u64,
            lkey: mr.lkey(),
            rkey: mr.rkey(),
        };
        let (addr, len) = (mr.addr(), mr.len_bytes());
        self.objects.mrs.insert(handle, Region { mr: Some(mr), addr, len, _backing: backing });
        Answer::Mr(about)
    }

    fn register(&mut self, pd: Handle, memory: Memory, len: u64, access: u32) -> Done {
        const CALL: &str = "reg_mr";
        let domain = object!(self.objects.pds, CALL, "domain", &pd, get)?;
        let len = usize::try_from(len).map_err(|error| Refusal::harness(CALL, error.to_string()))?;
        let backing = Backing::new(memory, len).map_err(|error| Refusal {
            call: CALL.into(),
            // Huge pages are the machine's to give.
            reason: if memory == Memory::HugePages { Reason::Unsupported } else { Reason::Harness },
            text: format!("no memory of kind {memory:?}: {error}"),
            posted: 0,
        })?;
        // SAFETY: the region is dropped before the memory; cases reach it by bounded copies only.
        let mr = unsafe { domain.reg_mr(backing.addr(), len, Access::from_bits_retain(access)) }
            .map_err(|error| refusal(CALL, &error))?;
        Ok(self.add_region(mr, Some(backing)))
    }

    fn create_qp(&mut self, make: &QpMake) -> Done {
        const CALL: &str = "create_qp";
        let objects = &self.objects;
        let domain = object!(objects.pds, CALL, "domain", &make.pd, get)?;
        let send_cq = object!(objects.cqs, CALL, "completion queue", &make.send_cq, get)?;
        let recv_cq = object!(objects.cqs, CALL, "completion queue", &make.recv_cq, get)?;
        let srq = match &make.srq {
            Some(srq) => Some(&**object!(objects.srqs, CALL, "shared receive queue", srq, get)?),
            None => None,
        };
        let qp_type = make.transport().ok_or_else(|| Refusal::harness(CALL, "no such transport"))?;
        let attr = QpInitAttr {
            send_cq: &**send_cq,
            recv_cq: &**recv_cq,
            srq,
            cap: make.cap(),
            qp_type,
            sq_sig_all: make.signal_all,
        };
        let qp = domain.create_qp(&attr).map_err(|error| refusal(CALL, &error))?;
        let (qpn, cap) = (qp.qp_num(), qp.cap());
        let handle = self.handle();
        self.objects.qps.insert(handle, qp);
        Ok(Answer::Qp(Qp {
            handle,
            qpn,
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }))
    }

    fn create_cq(&mut self, cqe: u32, channel: Option<Handle>) -> Done {
        const CALL: &str = "create_cq";
        let channel = match &channel {
            Some(channel) => Some(&**object!(self.objects.channels, CALL, "channel", channel, get)?),
            None => None,
        };
        let cq =
            self.context.create_cq(&CqInitAttr { cqe, channel }).map_err(|error| refusal(CALL, &error))?;
        let (handle, id) = (self.handle(), cq.id());
        self.objects.cqs.insert(handle, cq);
        Ok(Answer::Cq(Cq { handle, id }))
    }

    fn destroy(&mut self, handle: Handle) -> Done {
        let o = &mut self.objects;
        if let Some(srq) = o.srqs.remove(&handle) {
            return match srq.destroy() {
                Ok(()) => Ok(Answer::Done),
                Err(in_use) => {
                    o.srqs.insert(handle, in_use.srq);
                    Err(refusal("destroy_srq", &in_use.source))
                }
            };
        }
        let found = o.qps.remove(&handle).is_some()
            || o.ahs.remove(&handle).is_some()
            || o.mrs.remove(&handle).is_some()
            || o.cqs.remove(&handle).is_some()
            || o.channels.remove(&handle).is_some()
            || o.pds.remove(&handle).is_some();
        found.then_some(Answer::Done).ok_or_else(|| lost("destroy", "object", handle))
    }

    fn post_send(&mut self, qp: Handle, requests: &[SendRequest]) -> Done {
        const CALL: &str = "post_send";
        let inline = SendFlags::INLINE.bits();
        for piece in requests.iter().filter(|wr| wr.flags & inline != 0).flat_map(|wr| &wr.pieces) {
            // The one place where a provider reads memory unchecked.
            let owned = self.objects.mrs.values().any(|region| {
                let from = region.addr as u64;
                piece.addr >= from && piece.addr + u64::from(piece.len) <= from + region.len as u64
            });
            if !owned {
                return Err(Refusal::harness(CALL, "inline data outside of every region"));
            }
        }
        let lists: Vec<Vec<Sge>> = requests.iter().map(|request| sges(&request.pieces)).collect();
        let mut wrs = Vec::with_capacity(requests.len());
        for (request, list) in requests.iter().zip(&lists) {
            wrs.push(self.send_wr(request, list)?);
        }
        let qp = object!(self.objects.qps, CALL, "queue pair", &qp, get_mut)?;
        // SAFETY: memory of regions lives until the case ends; whatever else a request names, its keys forbid, which
        // is what cases try. Inline data was checked above.
        unsafe { qp.post_send(&wrs) }.map(|()| Answer::Done).map_err(|error| post_refusal(CALL, &error))
    }

    fn send_wr<'a>(&self, request: &SendRequest, list: &'a [Sge]) -> Result<SendWr<'a>, Refusal> {
        let mut wr = match request.target {
            Target::Peer => SendWr::send(request.wr_id, list),
            Target::Memory { addr, rkey } => SendWr::write(request.wr_id, list, addr, rkey),
            Target::Atomic { addr, rkey, compare_add, swap } => {
                let target = AtomicTarget { remote_addr: addr, compare_add, swap, rkey };
                SendWr::atomic(WrOpcode(request.opcode), request.wr_id, list, target)
            }
            Target::Datagram { ah, qpn, qkey } => {
                let ah = object!(self.objects.ahs, "post_send", "address handle", &ah, get)?;
                let to = UdTarget { ah: ah.as_raw(), remote_qpn: qpn, remote_qkey: qkey };
                SendWr::send_to(request.wr_id, list, to)
            }
        };
        wr.opcode = WrOpcode(request.opcode);
        wr.imm_data_be = request.imm.to_be();
        wr.send_flags = SendFlags::from_bits_retain(request.flags);
        Ok(wr)
    }

    fn post_recv(&mut self, queue: Handle, requests: &[RecvRequest]) -> Done {
        const CALL: &str = "post_recv";
        let lists: Vec<Vec<Sge>> = requests.iter().map(|request| sges(&request.pieces)).collect();
        let wrs: Vec<RecvWr<'_>> =
            requests.iter().zip(&lists).map(|(request, list)| RecvWr::new(request.wr_id, list)).collect();
        // SAFETY: as in `post_send`.
        let posted = unsafe {
            match self.objects.srqs.get_mut(&queue) {
                Some(srq) => srq.post_recv(&wrs),
                None => object!(self.objects.qps, CALL, "receive queue", &queue, get_mut)?.post_recv(&wrs),
            }
        };
        posted.map(|()| Answer::Done).map_err(|error| post_refusal(CALL, &error))
    }

    fn poll(&mut self, cq: Handle, max: u32) -> Done {
        const CALL: &str = "poll_cq";
        let cq = object!(self.objects.cqs, CALL, "completion queue", &cq, get_mut)?;
        let mut wcs = vec![Wc::default(); max as usize];
        let taken = cq.poll(&mut wcs).map_err(|error| refusal(CALL, &error))?;
        let Some(wcs) = wcs.get(..taken) else {
            return Err(Refusal {
                posted: 0,
                ..refusal(CALL, &Error::invalid("poll_cq", "more than asked for"))
            });
        };
        Ok(Answer::Completions(wcs.iter().copied().map(Completion::from).collect()))
    }

    fn sleep(&mut self, channel: Handle, timeout_ms: u32) -> Done {
        const CALL: &str = "sleep on a channel";
        let channel = object!(self.objects.channels, CALL, "channel", &channel, get)?;
        (self.sleep)(channel.fd(), timeout_ms)
            .map(Answer::Readable)
            .map_err(|error| Refusal::harness(CALL, error.to_string()))
    }

    /// The address of `len` bytes in a region, also a deregistered one, whose memory is still there.
    fn bytes_at(&self, call: &str, mr: Handle, offset: u64, len: usize) -> Result<*mut u8, Refusal> {
        let region = object!(self.objects.mrs, call, "region", &mr, get)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset.checked_add(len).is_none_or(|end| end > region.len) {
            let text = format!("{len} bytes at {offset} of a region of {}", region.len);
            return Err(Refusal::harness(call, text));
        }
        Ok(region.addr.wrapping_add(offset))
    }

    fn dereg(&mut self, mr: Handle) -> Done {
        const CALL: &str = "dereg_mr";
        let region = object!(self.objects.mrs, CALL, "region", &mr, get_mut)?;
        let raw = region.mr.take().ok_or_else(|| Refusal::harness(CALL, "deregistered twice"))?;
        let revoked = raw.dereg() == Revoked::Now;
        if region._backing.is_none() {
            // The provider's memory went with it.
            self.objects.mrs.remove(&mr);
        }
        Ok(Answer::Revoked(revoked))
    }

    fn create(&mut self, call: &Call) -> Done {
        let name = call.name();
        let refused = |error: Error| refusal(name, &error);
        match call {
            Call::AllocPd => {
                let pd = self.context.alloc_pd().map_err(refused)?;
                let handle = self.handle();
                self.objects.pds.insert(handle, pd);
                Ok(Answer::Made(handle))
            }
            Call::AllocMr { pd, len, access } => {
                let domain = object!(self.objects.pds, name, "domain", pd, get)?;
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                let mr = domain.alloc_mr(len, Access::from_bits_retain(*access)).map_err(refused)?;
                Ok(self.add_region(mr, None))
            }
            Call::RegMr { pd, memory, len, access } => self.register(*pd, *memory, *len, *access),
            Call::CreateChannel => {
                let channel = self.context.create_comp_channel().map_err(refused)?;
                let handle = self.handle();
                self.objects.channels.insert(handle, channel);
                Ok(Answer::Made(handle))
            }
            Call::CreateCq { cqe, channel } => self.create_cq(*cqe, *channel),
            Call::CreateSrq { pd, max_wr, max_sge } => {
                let domain = object!(self.objects.pds, name, "domain", pd, get)?;
                let attr = SrqInitAttr { max_wr: *max_wr, max_sge: *max_sge };
                let srq = domain.create_srq(&attr).map_err(refused)?;
                let (handle, number) = (self.handle(), srq.srq_num());
                self.objects.srqs.insert(handle, srq);
                Ok(Answer::Srq(handle, number))
            }
            Call::CreateQp(make) => self.create_qp(make),
            Call::CreateAh { pd, path } => {
                let domain = object!(self.objects.pds, name, "domain", pd, get)?;
                let ah = domain.create_ah(&AhAttr::from(*path)).map_err(refused)?;
                let handle = self.handle();
                self.objects.ahs.insert(handle, ah);
                Ok(Answer::Made(handle))
            }
            _ => Err(Refusal::harness(name, "creates nothing")),
        }
    }

    fn reset(&mut self) -> Answer {
        self.objects = Objects::default();
        while self.context.poll_async_event().is_some() {}
        Answer::Done
    }
}

fn sleep_in_kernel(fd: RawFd, timeout_ms: u32) -> std::io::Result<bool> {
    // SAFETY: the caller's channel keeps its descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let timeout =
        Timespec { tv_sec: i64::from(timeout_ms / 1000), tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000 };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready == 1),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn sges(pieces: &[Piece]) -> Vec<Sge> {
    pieces.iter().map(|piece| Sge { addr: piece.addr, length: piece.len, lkey: piece.lkey }).collect()
}

fn post_refusal(call: &str, error: &PostError) -> Refusal {
    Refusal { posted: error.posted, ..refusal(call, &error.source) }
}

impl Side for Local {
    fn call(&mut self, call: &Call) -> Done {
        let name = call.name();
        let refused = |error: Error| refusal(name, &error);
        match call {
            Call::About => self.about().map(Answer::About).map_err(refused),
            Call::Dereg(mr) => self.dereg(*mr),
            Call::Destroy(handle) => self.destroy(*handle),
            Call::Modify { qp, change } => {
                let qp = object!(self.objects.qps, name, "queue pair", qp, get_mut)?;
                qp.modify(&QpAttr::from(*change)).map(|()| Answer::Done).map_err(refused)
            }
            Call::State(qp) => {
                let qp = object!(self.objects.qps, name, "queue pair", qp, get)?;
                Ok(Answer::State(qp.state() as u32))
            }
            Call::PostSend { qp, requests } => self.post_send(*qp, requests),
            Call::PostRecv { queue, requests } => self.post_recv(*queue, requests),
            Call::Poll { cq, max } => self.poll(*cq, *max),
            Call::Arm { cq, solicited_only } => {
                let cq = object!(self.objects.cqs, name, "completion queue", cq, get_mut)?;
                let notify = if *solicited_only { Notify::Solicited } else { Notify::Any };
                cq.req_notify(notify).map(|()| Answer::Done).map_err(refused)
            }
            Call::TakeCqEvent(channel) => {
                let channel = object!(self.objects.channels, name, "channel", channel, get)?;
                channel.poll_cq_event().map(Answer::CqEvent).map_err(refused)
            }
            Call::Sleep { channel, timeout_ms } => self.sleep(*channel, *timeout_ms),
            Call::TakeAsync => {
                let event = self.context.poll_async_event();
                Ok(Answer::Async(
                    event.map(|event| Event { kind: format!("{:?}", event.kind), element: event.element }),
                ))
            }
            Call::Put { mr, offset, bytes } => {
                let at = self.bytes_at(name, *mr, *offset, bytes.len())?;
                // SAFETY: inside the region, whose memory is there; cases are quiet while they look or write.
                unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(Answer::Done)
            }
            Call::Get { mr, offset, len } => {
                let at = self.bytes_at(name, *mr, *offset, *len as usize)?;
                let mut bytes = vec![0; *len as usize];
                // SAFETY: as above.
                unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
                Ok(Answer::Bytes(bytes))
            }
            Call::ArmSrq { srq, limit } => {
                let srq = object!(self.objects.srqs, name, "shared receive queue", srq, get_mut)?;
                srq.modify(&SrqAttr { srq_limit: Some(*limit), ..SrqAttr::default() }).map_err(refused)?;
                Ok(Answer::Done)
            }
            Call::Reset => Ok(self.reset()),
            create => self.create(create),
        }
    }
}

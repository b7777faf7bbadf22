//! An end in this process: a provider's context and the objects of a case.

use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use farcall_verbs::{
    Access, Context, CqInitAttr, Error, GidChoice, Notify, QpInitAttr, RawMr, SrqAttr, SrqInitAttr,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Executor;
use super::call::{About, Answer, Call, Cq, Handle, Memory, Mr, Qp, QpInit, Refusal};
use super::memory::Backing;
use super::objects::{Done, Failure, Objects, Region, found};

/// Sleeps until a descriptor is readable, for at most the given milliseconds. Returns whether it is.
pub type Sleep = Box<dyn Fn(RawFd, u32) -> std::io::Result<bool>>;

/// An end on a provider in this process.
pub struct Local {
    sleep: Sleep,
    objects: Objects,
    next: Handle,
    context: Arc<dyn Context>,
    provider: &'static str,
}

impl Local {
    /// Creates an end on an opened device.
    pub fn new(provider: &'static str, context: Arc<dyn Context>) -> Self {
        Self::with_sleep(provider, context, Box::new(sleep_in_kernel))
    }

    /// Creates an end whose descriptors are not those of the kernel.
    pub fn with_sleep(provider: &'static str, context: Arc<dyn Context>, sleep: Sleep) -> Self {
        Self { objects: Objects::default(), next: 0, context, provider, sleep }
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    fn about(&self) -> Result<About, Failure> {
        let device = self.context.query_device()?;
        let port = self.context.query_port(1)?;
        let choice = GidChoice::automatic(port.link_layer, self.context.query_gid_table(1)?)?;
        let gid_index = u8::try_from(choice.entry.index)
            .map_err(|_| Error::invalid("choose GID", "the index has more than eight bits"))?;
        Ok(About { provider: self.provider.into(), device, port, gid: choice.entry.gid, gid_index })
    }

    fn add_region(&mut self, mr: Box<dyn RawMr>, backing: Option<Rc<Backing>>) -> Answer {
        let (handle, addr, len) = (self.handle(), mr.addr(), mr.len_bytes());
        let about = Mr { handle, addr: addr as u64, len: len as u64, lkey: mr.lkey(), rkey: mr.rkey() };
        self.objects.mrs.insert(handle, Region { mr: Some(mr), addr, len, backing });
        Answer::Mr(about)
    }

    fn register(&mut self, pd: Handle, memory: Memory, len: u64, access: Access) -> Done {
        let domain = self.objects.pd(pd)?;
        let len = usize::try_from(len).map_err(|error| Failure::Harness(error.to_string()))?;
        let backing = Backing::new(memory, len).map_err(|error| {
            let text = format!("no memory of kind {memory:?}: {error}");
            // Whether huge pages are available depends on the machine.
            if memory == Memory::HugePages { Failure::Memory(text) } else { Failure::Harness(text) }
        })?;
        // SAFETY: `backing` owns at least `len` bytes at its address. `Region`, into which both are moved, drops the
        // registration before the memory. The case accesses the memory only by the bounds-checked copies of
        // `Call::Put` and `Call::Get`.
        let mr = unsafe { domain.reg_mr(backing.addr(), len, access) }?;
        Ok(self.add_region(mr, Some(Rc::new(backing))))
    }

    /// Registers part of the memory of a region again.
    fn register_part(&mut self, pd: Handle, (of, offset, len): (Handle, u64, u64), access: Access) -> Done {
        let domain = self.objects.pd(pd)?;
        let len = usize::try_from(len).map_err(|error| Failure::Harness(error.to_string()))?;
        let addr = self.objects.bytes_at(of, offset, len)?;
        let backing = found(self.objects.mrs.get(&of), "region", of)?.backing.clone();
        let backing = found(backing, "memory of a case in region", of)?;
        // SAFETY: `bytes_at` has checked that the range lies within the memory that `backing` owns. `Region`, into which
        // a reference to it is moved, drops the registration before that reference. The case accesses the memory only
        // by the bounds-checked copies of `Call::Put` and `Call::Get`.
        let mr = unsafe { domain.reg_mr(addr, len, access) }?;
        Ok(self.add_region(mr, Some(backing)))
    }

    fn create_qp(&mut self, init: &QpInit) -> Done {
        let objects = &self.objects;
        let attr = QpInitAttr {
            send_cq: objects.cq(init.send_cq)?,
            recv_cq: objects.cq(init.recv_cq)?,
            srq: init.srq.map(|srq| objects.srq(srq)).transpose()?,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.signal_all,
        };
        let qp = objects.pd(init.pd)?.create_qp(&attr)?;
        let (handle, qpn, cap) = (self.handle(), qp.qp_num(), qp.cap());
        self.objects.qps.insert(handle, qp);
        Ok(Answer::Qp(Qp { handle, qpn, cap }))
    }

    fn create_cq(&mut self, cqe: u32, channel: Option<Handle>) -> Done {
        let channel = channel.map(|channel| self.objects.channel(channel)).transpose()?;
        let cq = self.context.create_cq(&CqInitAttr { cqe, channel })?;
        let (handle, id) = (self.handle(), cq.id());
        self.objects.cqs.insert(handle, cq);
        Ok(Answer::Cq(Cq { handle, id }))
    }

    fn execute(&mut self, call: &Call) -> Done {
        match *call {
            Call::About => Ok(Answer::About(self.about()?)),
            Call::AllocPd => {
                let (pd, handle) = (self.context.alloc_pd()?, self.handle());
                self.objects.pds.insert(handle, pd);
                Ok(Answer::Made(handle))
            }
            Call::AllocMr { pd, len, access } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let mr = self.objects.pd(pd)?.alloc_mr(len, access)?;
                Ok(self.add_region(mr, None))
            }
            Call::RegMr { pd, memory, len, access } => self.register(pd, memory, len, access),
            Call::RegPart { pd, of, offset, len, access } => {
                self.register_part(pd, (of, offset, len), access)
            }
            Call::Dereg(mr) => self.objects.dereg(mr),
            Call::CreateChannel => {
                let (channel, handle) = (self.context.create_comp_channel()?, self.handle());
                self.objects.channels.insert(handle, channel);
                Ok(Answer::Made(handle))
            }
            Call::CreateCq { cqe, channel } => self.create_cq(cqe, channel),
            Call::CreateSrq { pd, max_wr, max_sge } => {
                let srq = self.objects.pd(pd)?.create_srq(&SrqInitAttr { max_wr, max_sge })?;
                let (handle, number) = (self.handle(), srq.srq_num());
                self.objects.srqs.insert(handle, srq);
                Ok(Answer::Srq(handle, number))
            }
            Call::CreateQp(ref init) => self.create_qp(init),
            Call::CreateAh { pd, ref path } => {
                let (ah, handle) = (self.objects.pd(pd)?.create_ah(path)?, self.handle());
                self.objects.ahs.insert(handle, ah);
                Ok(Answer::Made(handle))
            }
            Call::Destroy(handle) => self.objects.destroy(handle),
            Call::Modify { qp, ref change } => {
                self.objects.qp_mut(qp)?.modify(change)?;
                Ok(Answer::Done)
            }
            Call::State(qp) => Ok(Answer::State(self.objects.qp_mut(qp)?.state())),
            Call::PostSend { qp, ref requests } => self.objects.post_send(qp, requests),
            Call::PostRecv { queue, ref requests } => self.objects.post_recv(queue, requests),
            Call::Poll { cq, max } => self.objects.poll(cq, max),
            Call::Arm { cq, solicited_only } => {
                let notify = if solicited_only { Notify::Solicited } else { Notify::Any };
                self.objects.cq_mut(cq)?.req_notify(notify)?;
                Ok(Answer::Done)
            }
            Call::TakeCqEvent(channel) => {
                Ok(Answer::CqEvent(self.objects.channel(channel)?.poll_cq_event()?))
            }
            Call::Sleep { channel, timeout_ms } => {
                Ok(Answer::Readable((self.sleep)(self.objects.channel(channel)?.fd(), timeout_ms)?))
            }
            Call::TakeAsync => Ok(Answer::Async(self.context.poll_async_event())),
            Call::Put { mr, offset, ref bytes } => {
                let at = self.objects.bytes_at(mr, offset, bytes.len())?;
                // SAFETY: `bytes_at` has checked that the range lies within the region, whose memory `Region` owns
                // until it is dropped. Cases call this only while no operation accesses the range.
                unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(Answer::Done)
            }
            Call::Get { mr, offset, len } => {
                let mut bytes = vec![0; len as usize];
                let at = self.objects.bytes_at(mr, offset, bytes.len())?;
                // SAFETY: `bytes_at` has checked that the range lies within the region, whose memory `Region` owns
                // until it is dropped. Cases call this only while no operation accesses the range.
                unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
                Ok(Answer::Bytes(bytes))
            }
            Call::ArmSrq { srq, limit } => {
                let attr = SrqAttr { srq_limit: Some(limit), ..SrqAttr::default() };
                found(self.objects.srqs.get_mut(&srq), "shared receive queue", srq)?.modify(&attr)?;
                Ok(Answer::Done)
            }
            Call::Reset => {
                self.objects = Objects::default();
                while self.context.poll_async_event().is_some() {}
                Ok(Answer::Done)
            }
        }
    }
}

fn sleep_in_kernel(fd: RawFd, timeout_ms: u32) -> std::io::Result<bool> {
    // SAFETY: the only caller, `Call::Sleep`, passes the descriptor of a channel in `self.objects`, which remains open
    // during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let timeout =
        Timespec { tv_sec: i64::from(timeout_ms / 1000), tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000 };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready == 1),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Executor for Local {
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        self.execute(call).map_err(|failure| failure.into_refusal(call))
    }
}

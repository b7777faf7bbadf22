//! One end of a case: its objects and their memory; the submodules contain its states, posting and waiting.

mod post;
mod states;
mod wait;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use farcall_verbs::{Access, OpCaps, QpType, Wc};

use crate::executor::{About, Answer, Call, Cq, Executor, Handle, Memory, Mr, Qp, QpInit, Refusal};
use crate::finding::{Finding, Verdict};
use crate::setup::Setup;
use crate::world::{Pace, World};

pub(crate) use post::{GRH_BYTES, IMM, deliver, deliver_on};
pub(crate) use states::{Address, another_pair, another_pair_of, connect, equip, half_join, join, reconnect};

/// One end of a case.
pub struct End {
    name: &'static str,
    executor: Box<dyn Executor>,
    world: Rc<dyn World>,
    about: About,
    deadline: Duration,
    /// Completions that were polled while waiting for other conditions.
    stash: BTreeMap<Handle, VecDeque<Wc>>,
    /// Setup of the objects below, and of queue pairs created later.
    pub(crate) setup: Setup,
    /// Protection domain of the objects below.
    pub(crate) pd: Handle,
    /// Channel of the events of `cq`.
    pub(crate) channel: Handle,
    /// Completion queue of sends and receives of `qp`.
    pub(crate) cq: Cq,
    /// Queue pair of the case.
    pub(crate) qp: Qp,
    /// Region of the case.
    pub(crate) mr: Mr,
    /// Shared receive queue and its number, if the setup has one.
    pub(crate) srq: Option<(Handle, u32)>,
    /// Address handle of the other end, for datagrams.
    pub(crate) ah: Handle,
}

/// Extracts the variant of an answer that the call returns.
macro_rules! answer {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err(Refusal::harness("answer", format!("a wrong one: {other:?}"))),
        }
    };
}
use answer;

impl End {
    pub(crate) fn new(
        name: &'static str,
        mut executor: Box<dyn Executor>,
        world: Rc<dyn World>,
    ) -> Verdict<Self> {
        let about = answer!(executor.call(&Call::About)?, Answer::About(about) => about)?;
        Ok(Self {
            name,
            executor,
            deadline: world.pace().deadline,
            world,
            about,
            stash: BTreeMap::new(),
            setup: Setup::rc(),
            pd: 0,
            channel: 0,
            cq: Cq::default(),
            qp: Qp::default(),
            mr: Mr::default(),
            srq: None,
            ah: 0,
        })
    }

    /// Reduces the deadline to a tenth: for cases that are known to wait without success.
    pub(crate) fn hurry(&mut self) {
        self.deadline = self.world.pace().deadline / 10;
    }

    /// Returns the attributes of the device.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    pub(crate) fn pace(&self) -> Pace {
        self.world.pace()
    }

    /// Returns the operations of the device over a transport.
    pub(crate) fn ops(&self, qp_type: QpType) -> OpCaps {
        self.about.device.ops(qp_type)
    }

    pub(crate) fn reset(&mut self) -> Verdict {
        self.stash.clear();
        self.done(&Call::Reset).map_err(Finding::from)
    }

    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        self.executor.call(call)
    }

    fn done(&mut self, call: &Call) -> Result<(), Refusal> {
        answer!(self.call(call)?, Answer::Done => ())
    }

    pub(crate) fn new_pd(&mut self) -> Result<Handle, Refusal> {
        answer!(self.call(&Call::AllocPd)?, Answer::Made(pd) => pd)
    }

    pub(crate) fn new_mr(&mut self, pd: Handle, len: u64, access: Access) -> Result<Mr, Refusal> {
        answer!(self.call(&Call::AllocMr { pd, len, access })?, Answer::Mr(mr) => mr)
    }

    pub(crate) fn register(&mut self, memory: Memory, len: u64, access: Access) -> Result<Mr, Refusal> {
        let call = Call::RegMr { pd: self.pd, memory, len, access };
        answer!(self.call(&call)?, Answer::Mr(mr) => mr)
    }

    /// Registers part of the memory of a region again.
    pub(crate) fn register_part(
        &mut self,
        of: Mr,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, Refusal> {
        let call = Call::RegPart { pd: self.pd, of: of.handle, offset, len, access };
        answer!(self.call(&call)?, Answer::Mr(mr) => mr)
    }

    /// Deregisters a region. Returns whether no peer can access the memory any more.
    pub(crate) fn dereg(&mut self, mr: Mr) -> Result<bool, Refusal> {
        answer!(self.call(&Call::Dereg(mr.handle))?, Answer::Revoked(revoked) => revoked)
    }

    pub(crate) fn new_channel(&mut self) -> Result<Handle, Refusal> {
        answer!(self.call(&Call::CreateChannel)?, Answer::Made(channel) => channel)
    }

    pub(crate) fn new_cq(&mut self, cqe: u32, channel: Option<Handle>) -> Result<Cq, Refusal> {
        answer!(self.call(&Call::CreateCq { cqe, channel })?, Answer::Cq(cq) => cq)
    }

    pub(crate) fn new_srq(&mut self, max_wr: u32, max_sge: u32) -> Result<(Handle, u32), Refusal> {
        let call = Call::CreateSrq { pd: self.pd, max_wr, max_sge };
        answer!(self.call(&call)?, Answer::Srq(handle, number) => (handle, number))
    }

    pub(crate) fn arm_srq(&mut self, srq: Handle, limit: u32) -> Result<(), Refusal> {
        self.done(&Call::ArmSrq { srq, limit })
    }

    pub(crate) fn new_ah(&mut self, to: &Address) -> Result<Handle, Refusal> {
        let (pd, path) = (self.pd, self.path(to));
        answer!(self.call(&Call::CreateAh { pd, path })?, Answer::Made(ah) => ah)
    }

    /// Returns the parameters of a queue pair of the setup, with this end's domain, queues and shared receive queue.
    pub(crate) fn qp_init(&self) -> QpInit {
        QpInit {
            pd: self.pd,
            send_cq: self.cq.handle,
            recv_cq: self.cq.handle,
            srq: self.srq.map(|(handle, _)| handle),
            qp_type: self.setup.qp_type,
            signal_all: self.setup.signal_all,
            cap: self.setup.cap,
        }
    }

    pub(crate) fn new_qp(&mut self, init: &QpInit) -> Result<Qp, Refusal> {
        answer!(self.call(&Call::CreateQp(*init))?, Answer::Qp(qp) => qp)
    }

    pub(crate) fn destroy(&mut self, handle: Handle) -> Result<(), Refusal> {
        self.stash.remove(&handle);
        self.done(&Call::Destroy(handle))
    }

    /// Creates all objects of the setup; the queue pair is in RESET.
    pub(crate) fn equip(&mut self, setup: &Setup) -> Verdict {
        self.setup = *setup;
        self.pd = self.new_pd()?;
        self.channel = self.new_channel()?;
        self.cq = self.new_cq(setup.cqe, Some(self.channel))?;
        if let Some(max_wr) = setup.srq {
            self.srq = Some(self.new_srq(max_wr, setup.cap.max_recv_sge)?);
        }
        self.qp = self.new_qp(&self.qp_init())?;
        self.mr = self.new_mr(self.pd, setup.mr_len, setup.mr_access)?;
        Ok(())
    }

    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.put_in(self.mr, offset, bytes)
    }

    pub(crate) fn put_in(&mut self, mr: Mr, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.done(&Call::Put { mr: mr.handle, offset, bytes: bytes.to_vec() })
    }

    pub(crate) fn get(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Refusal> {
        self.get_in(self.mr, offset, len)
    }

    pub(crate) fn get_in(&mut self, mr: Mr, offset: u64, len: u32) -> Result<Vec<u8>, Refusal> {
        answer!(self.call(&Call::Get { mr: mr.handle, offset, len })?, Answer::Bytes(bytes) => bytes)
    }

    /// Returns the handle and the number of the shared receive queue, which the setup must have.
    pub(crate) fn srq(&self) -> (Handle, u32) {
        self.srq.expect("a setup with a shared receive queue")
    }

    /// Returns the eight bytes at an offset.
    pub(crate) fn word(&mut self, offset: u64) -> Result<u64, Refusal> {
        let bytes = self.get(offset, 8)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }
}

/// Returns bytes that depend on position and seed.
pub(crate) fn pattern(len: u32, seed: u64) -> Vec<u8> {
    (0..u64::from(len)).map(|i| (i.wrapping_mul(0x9E37_79B9).wrapping_add(seed * 77) >> 5) as u8).collect()
}

//! One end in the hands of a case: its objects, and waiting with a bound.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use farcall_verbs::{
    Access, AhAttr, AsyncEventKind, Gid, OpCaps, QpAttr, QpState, QpType, RnrTimer, Wc, WcStatus,
};

use crate::finding::{Finding, Verdict, same};
use crate::op::Op;
use crate::setup::{QKEY, Setup};
use crate::side::{
    About, Answer, Call, Cq, Event, Handle, Memory, Mr, Piece, Qp, QpMake, RecvRequest, Refusal, SendRequest,
    Side, Target, mtu_from, state_from,
};
use crate::world::{Pace, World};

/// How often a wait asks before it lets time pass: most answers are there at once.
const EAGER_LOOKS: u32 = 50;

/// Where a queue pair is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    pub(crate) qpn: u32,
}

/// One end of a case.
pub struct Peer {
    name: &'static str,
    side: Box<dyn Side>,
    world: Rc<dyn World>,
    about: About,
    deadline: Duration,
    /// Completions polled while waiting for something else.
    stash: BTreeMap<Handle, VecDeque<Wc>>,
    /// The domain of the objects below.
    pub(crate) pd: Handle,
    /// Where events of `cq` go.
    pub(crate) channel: Handle,
    /// The queue of both kinds of completions of `qp`.
    pub(crate) cq: Cq,
    /// The queue pair of the case.
    pub(crate) qp: Qp,
    /// The region of the case.
    pub(crate) mr: Mr,
    /// The shared receive queue and its number, if the setup has one.
    pub(crate) srq: Option<(Handle, u32)>,
    /// The way to the other end, for datagrams.
    pub(crate) ah: Handle,
}

macro_rules! answer {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err(Refusal::harness("answer", format!("a wrong one: {other:?}"))),
        }
    };
}

impl Peer {
    pub(crate) fn new(name: &'static str, mut side: Box<dyn Side>, world: Rc<dyn World>) -> Verdict<Self> {
        let about = answer!(side.call(&Call::About)?, Answer::About(about) => about)?;
        Ok(Self {
            name,
            side,
            deadline: world.pace().deadline,
            world,
            about,
            stash: BTreeMap::new(),
            pd: 0,
            channel: 0,
            cq: Cq::default(),
            qp: Qp::default(),
            mr: Mr::default(),
            srq: None,
            ah: 0,
        })
    }

    /// Waits a tenth as long: for cases that are known to wait for nothing.
    pub(crate) fn hurry(&mut self) {
        self.deadline = self.world.pace().deadline / 10;
    }

    /// What the device says of itself.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    pub(crate) fn pace(&self) -> Pace {
        self.world.pace()
    }

    /// Operations over a transport.
    pub(crate) fn ops(&self, qp_type: QpType) -> OpCaps {
        let [rc, uc, ud] = self.about.ops;
        OpCaps::from_bits_retain(match qp_type {
            QpType::Uc => uc,
            QpType::Ud => ud,
            _ => rc,
        })
    }

    pub(crate) fn reset(&mut self) -> Verdict {
        self.stash.clear();
        self.done(&Call::Reset).map_err(Finding::from)
    }

    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        self.side.call(call)
    }

    fn done(&mut self, call: &Call) -> Result<(), Refusal> {
        answer!(self.call(call)?, Answer::Done => ())
    }

    // --- Objects -----------------------------------------------------------------------------------------------------

    pub(crate) fn new_pd(&mut self) -> Result<Handle, Refusal> {
        answer!(self.call(&Call::AllocPd)?, Answer::Made(pd) => pd)
    }

    pub(crate) fn new_mr(&mut self, pd: Handle, len: u64, access: Access) -> Result<Mr, Refusal> {
        answer!(self.call(&Call::AllocMr { pd, len, access: access.bits() })?, Answer::Mr(mr) => mr)
    }

    pub(crate) fn register(&mut self, memory: Memory, len: u64, access: Access) -> Result<Mr, Refusal> {
        let call = Call::RegMr { pd: self.pd, memory, len, access: access.bits() };
        answer!(self.call(&call)?, Answer::Mr(mr) => mr)
    }

    /// Deregisters; whether no peer accesses the memory any more.
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
        let (pd, path) = (self.pd, self.path(to).into());
        answer!(self.call(&Call::CreateAh { pd, path })?, Answer::Made(ah) => ah)
    }

    /// What a queue pair of the setup is made with, on our own domain, queues and shared receive queue.
    pub(crate) fn qp_make(&self, setup: &Setup) -> QpMake {
        QpMake {
            pd: self.pd,
            send_cq: self.cq.handle,
            recv_cq: self.cq.handle,
            srq: self.srq.map(|(handle, _)| handle),
            qp_type: setup.qp_type as u32,
            signal_all: setup.signal_all,
            max_send_wr: setup.cap.max_send_wr,
            max_recv_wr: setup.cap.max_recv_wr,
            max_send_sge: setup.cap.max_send_sge,
            max_recv_sge: setup.cap.max_recv_sge,
            max_inline_data: setup.cap.max_inline_data,
        }
    }

    pub(crate) fn new_qp(&mut self, make: &QpMake) -> Result<Qp, Refusal> {
        answer!(self.call(&Call::CreateQp(*make))?, Answer::Qp(qp) => qp)
    }

    pub(crate) fn destroy(&mut self, handle: Handle) -> Result<(), Refusal> {
        self.stash.remove(&handle);
        self.done(&Call::Destroy(handle))
    }

    /// Makes everything that the setup asks for; the queue pair is in RESET.
    pub(crate) fn equip(&mut self, setup: &Setup) -> Verdict {
        self.pd = self.new_pd()?;
        self.channel = self.new_channel()?;
        self.cq = self.new_cq(setup.cqe, Some(self.channel))?;
        if let Some(max_wr) = setup.srq {
            self.srq = Some(self.new_srq(max_wr, setup.cap.max_recv_sge)?);
        }
        self.qp = self.new_qp(&self.qp_make(setup))?;
        self.mr = self.new_mr(self.pd, setup.mr_len, setup.mr_access)?;
        Ok(())
    }

    // --- States ------------------------------------------------------------------------------------------------------

    pub(crate) fn address(&self, qp: Qp) -> Address {
        Address { gid: self.about.gid, lid: self.about.lid, qpn: qp.qpn }
    }

    pub(crate) fn path(&self, to: &Address) -> AhAttr {
        AhAttr {
            dgid: Gid(to.gid),
            sgid_index: self.about.gid_index,
            dlid: to.lid,
            port_num: 1,
            ..AhAttr::default()
        }
    }

    pub(crate) fn init_attr(&self, setup: &Setup) -> QpAttr {
        let attr = QpAttr::init(setup.qp_access);
        match setup.qp_type {
            QpType::Ud => QpAttr { access: None, qkey: Some(QKEY), ..attr },
            _ => attr,
        }
    }

    pub(crate) fn rtr_attr(&self, setup: &Setup, to: &Address) -> QpAttr {
        let rc = QpAttr {
            max_dest_rd_atomic: Some(setup.rd_atomic),
            min_rnr_timer: Some(RnrTimer(setup.min_rnr_timer)),
            ..QpAttr::rtr(to.qpn, 0, self.path(to), mtu_from(self.about.active_mtu))
        };
        match setup.qp_type {
            QpType::Uc => QpAttr { max_dest_rd_atomic: None, min_rnr_timer: None, ..rc },
            QpType::Ud => QpAttr::to(QpState::Rtr),
            _ => rc,
        }
    }

    pub(crate) fn rts_attr(&self, setup: &Setup) -> QpAttr {
        if setup.qp_type != QpType::Rc {
            return QpAttr { sq_psn: Some(0), ..QpAttr::to(QpState::Rts) };
        }
        let patient = QpAttr {
            rnr_retry: Some(setup.rnr_retry),
            max_rd_atomic: Some(setup.rd_atomic),
            // About ten seconds with seven retries: a busy machine is not a silent peer.
            timeout: Some(18),
            ..QpAttr::rts(0)
        };
        if !setup.is_impatient {
            return patient;
        }
        let (timeout, retries) = self.pace().quick_retry;
        QpAttr { timeout: Some(timeout), retry_cnt: Some(retries), ..patient }
    }

    pub(crate) fn modify(&mut self, qp: Qp, attr: QpAttr) -> Result<(), Refusal> {
        self.done(&Call::Modify { qp: qp.handle, change: attr.into() })
    }

    pub(crate) fn state(&mut self, qp: Qp) -> Result<QpState, Refusal> {
        answer!(self.call(&Call::State(qp.handle))?, Answer::State(state) => state_from(state))
    }

    /// To the error state.
    pub(crate) fn fail_qp(&mut self) -> Result<(), Refusal> {
        self.modify(self.qp, QpAttr::to(QpState::Err))
    }

    // --- Posting -----------------------------------------------------------------------------------------------------

    /// A piece of the case's region.
    pub(crate) fn piece(&self, offset: u64, len: u32) -> Piece {
        Piece { addr: self.mr.addr + offset, len, lkey: self.mr.lkey }
    }

    /// Where SENDs to `b`'s queue pair go.
    pub(crate) fn message_target(&self, b: &Peer) -> Target {
        match self.ah {
            0 => Target::Peer,
            ah => Target::Datagram { ah, qpn: b.qp.qpn, qkey: QKEY },
        }
    }

    pub(crate) fn post_on(&mut self, qp: Qp, requests: Vec<SendRequest>) -> Result<(), Refusal> {
        self.done(&Call::PostSend { qp: qp.handle, requests })
    }

    pub(crate) fn post(&mut self, request: SendRequest) -> Result<(), Refusal> {
        self.post_on(self.qp, vec![request])
    }

    /// Posts receives to a queue pair or a shared receive queue.
    pub(crate) fn recv_on(&mut self, queue: Handle, requests: Vec<RecvRequest>) -> Result<(), Refusal> {
        self.done(&Call::PostRecv { queue, requests })
    }

    /// Posts a receive where the case's queue pair takes them from.
    pub(crate) fn recv_into(&mut self, wr_id: u64, pieces: Vec<Piece>) -> Result<(), Refusal> {
        let queue = self.srq.map_or(self.qp.handle, |(srq, _)| srq);
        self.recv_on(queue, vec![RecvRequest { wr_id, pieces }])
    }

    /// Posts a receive of one piece of the case's region.
    pub(crate) fn recv(&mut self, wr_id: u64, offset: u64, len: u32) -> Result<(), Refusal> {
        self.recv_into(wr_id, vec![self.piece(offset, len)])
    }

    // --- Memory ------------------------------------------------------------------------------------------------------

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

    /// The eight bytes at an offset.
    pub(crate) fn word(&mut self, offset: u64) -> Result<u64, Refusal> {
        let bytes = self.get(offset, 8)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }

    // --- Completions -------------------------------------------------------------------------------------------------

    /// Waits for something, letting time pass, up to the deadline of the world.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Verdict<Option<T>>,
    ) -> Verdict<T> {
        let (began, deadline) = (self.world.now(), self.deadline);
        let mut looks = 0_u32;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            let waited = self.world.now().saturating_sub(began);
            if waited > deadline {
                return Err(Finding::new(format!("the {} waited {waited:?} for {what}", self.name)));
            }
            looks += 1;
            if looks > EAGER_LOOKS {
                self.world.idle();
            }
        }
    }

    /// Polls once, taking what was stashed first.
    pub(crate) fn poll_on(&mut self, cq: Cq, max: u32) -> Verdict<Vec<Wc>> {
        if let Some(stash) = self.stash.get_mut(&cq.handle)
            && !stash.is_empty()
        {
            let taken = stash.len().min(max as usize);
            return Ok(stash.drain(..taken).collect());
        }
        Ok(self.poll_fresh(cq, max)?)
    }

    fn poll_fresh(&mut self, cq: Cq, max: u32) -> Result<Vec<Wc>, Refusal> {
        let call = Call::Poll { cq: cq.handle, max };
        answer!(self.call(&call)?, Answer::Completions(all) => all.into_iter().map(Wc::from).collect())
    }

    /// The completion there is now.
    pub(crate) fn poll(&mut self) -> Verdict<Option<Wc>> {
        Ok(self.poll_on(self.cq, 1)?.into_iter().next())
    }

    /// Waits for a completion on a queue.
    pub(crate) fn wait_on(&mut self, cq: Cq) -> Verdict<Wc> {
        self.until("a completion", |end| Ok(end.poll_on(cq, 1)?.into_iter().next()))
    }

    /// Waits for a completion.
    pub(crate) fn wait(&mut self) -> Verdict<Wc> {
        let qp = self.qp;
        let waited = self.wait_on(self.cq);
        waited.map_err(|finding| match self.state(qp) {
            Ok(state) => {
                Finding { text: format!("{}; its queue pair is in {state}", finding.text), ..finding }
            }
            Err(_) => finding,
        })
    }

    /// Waits for a completion and expects it to be of this request of the case's queue pair, ended so.
    pub(crate) fn expect(&mut self, wr_id: u64, status: WcStatus) -> Verdict<Wc> {
        let wc = self.wait()?;
        let what = format!("completion at the {} (wr_id, status, qp_num)", self.name);
        same(&what, (wc.wr_id, wc.status, wc.qp_num), (wr_id, status, self.qp.qpn))?;
        Ok(wc)
    }

    pub(crate) fn expect_ok(&mut self, wr_id: u64) -> Verdict<Wc> {
        self.expect(wr_id, WcStatus::SUCCESS)
    }

    /// Expects that no completion is there, and none comes for a while.
    pub(crate) fn expect_quiet(&mut self) -> Verdict {
        let (began, quiet) = (self.world.now(), self.pace().quiet);
        loop {
            if let Some(wc) = self.poll()? {
                return Err(Finding::new(format!("an unexpected completion at the {}: {wc:?}", self.name)));
            }
            if self.world.now().saturating_sub(began) >= quiet {
                return Ok(());
            }
            self.world.idle();
        }
    }

    /// Lets the quiet time of the world pass without polling.
    pub(crate) fn pause(&self) {
        let began = self.world.now();
        while self.world.now().saturating_sub(began) < self.pace().quiet {
            self.world.idle();
        }
    }

    /// Waits until an operation whose completion came at the initiator has arrived here: that of an unreliable WRITE says
    /// only that it was sent.
    pub(crate) fn let_arrive(&self, qp_type: QpType, op: Op) {
        if qp_type == QpType::Uc && op == Op::Write {
            self.pause();
        }
    }

    /// Waits until the queue pair is in a state; completions that come meanwhile are kept.
    pub(crate) fn expect_state(&mut self, qp: Qp, state: QpState) -> Verdict {
        let cq = self.cq;
        self.until(&format!("its queue pair to be in {state}"), |end| {
            let fresh = end.poll_fresh(cq, 16)?;
            end.stash.entry(cq.handle).or_default().extend(fresh);
            Ok((end.state(qp)? == state).then_some(()))
        })
    }

    // --- Events ------------------------------------------------------------------------------------------------------

    /// Arms the case's completion queue.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<(), Refusal> {
        self.done(&Call::Arm { cq: self.cq.handle, solicited_only })
    }

    pub(crate) fn arm_on(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Refusal> {
        self.done(&Call::Arm { cq: cq.handle, solicited_only })
    }

    /// The completion event that is there now: the id of its queue.
    pub(crate) fn cq_event(&mut self) -> Result<Option<u32>, Refusal> {
        answer!(self.call(&Call::TakeCqEvent(self.channel))?, Answer::CqEvent(event) => event)
    }

    /// Whether the channel becomes readable within the time.
    pub(crate) fn is_woken(&mut self, timeout_ms: u32) -> Result<bool, Refusal> {
        let call = Call::Sleep { channel: self.channel, timeout_ms };
        answer!(self.call(&call)?, Answer::Readable(readable) => readable)
    }

    /// Sleeps on the channel, without polling, for the event of a queue.
    pub(crate) fn expect_cq_event(&mut self, cq: Cq) -> Verdict {
        let event = self.until("a completion event", |end| {
            end.is_woken(1)?;
            Ok(end.cq_event()?)
        })?;
        same("the event's completion queue", event, cq.id)
    }

    /// Expects that there is no completion event, and none comes for a while.
    pub(crate) fn expect_no_cq_event(&mut self) -> Verdict {
        let quiet_ms = self.pace().quiet.as_millis() as u32;
        self.world.idle();
        let woken = self.is_woken(quiet_ms)?;
        let event = self.cq_event()?;
        same("a completion event (readable, queue)", (woken, event), (false, None))
    }

    /// Waits for an asynchronous event of a kind about an element; others are dropped.
    pub(crate) fn expect_async(&mut self, kind: AsyncEventKind, element: u32) -> Verdict {
        let mut others = Vec::new();
        let cq = self.cq;
        let found = self.until(&format!("the event {kind:?} of {element:#x}"), |end| {
            // Polling progresses; what comes is kept.
            let fresh = end.poll_fresh(cq, 16)?;
            end.stash.entry(cq.handle).or_default().extend(fresh);
            while let Some(event) = end.async_event()? {
                if event.is(kind) && event.element == element {
                    return Ok(Some(()));
                }
                others.push(event);
            }
            Ok(None)
        });
        found.map_err(|finding| Finding { text: format!("{}; others: {others:?}", finding.text), ..finding })
    }

    /// The asynchronous event that is there now.
    pub(crate) fn async_event(&mut self) -> Result<Option<Event>, Refusal> {
        answer!(self.call(&Call::TakeAsync)?, Answer::Async(event) => event)
    }
}

/// Connects two queue pairs in RESET; both reach RTS.
pub(crate) fn connect(a: &mut Peer, qa: Qp, b: &mut Peer, qb: Qp, setup: &Setup) -> Verdict {
    let (to_a, to_b) = (a.address(qa), b.address(qb));
    a.modify(qa, a.init_attr(setup))?;
    b.modify(qb, b.init_attr(setup))?;
    a.modify(qa, a.rtr_attr(setup, &to_b))?;
    b.modify(qb, b.rtr_attr(setup, &to_a))?;
    a.modify(qa, a.rts_attr(setup))?;
    b.modify(qb, b.rts_attr(setup))?;
    Ok(())
}

/// Equips two ends and connects them.
pub(crate) fn join(a: &mut Peer, b: &mut Peer, setup: &Setup) -> Verdict {
    a.equip(setup)?;
    b.equip(setup)?;
    connect(a, a.qp, b, b.qp, setup)?;
    if setup.qp_type == QpType::Ud {
        (a.ah, b.ah) = (a.new_ah(&b.address(b.qp))?, b.new_ah(&a.address(a.qp))?);
    }
    Ok(())
}

/// Bytes that differ everywhere, by seed.
pub(crate) fn pattern(len: u32, seed: u64) -> Vec<u8> {
    (0..u64::from(len)).map(|i| (i.wrapping_mul(0x9E37_79B9).wrapping_add(seed * 77) >> 5) as u8).collect()
}

//! Waiting with a deadline for completions, events and states.

use farcall_verbs::{AsyncEvent, AsyncEventKind, QpState, QpType, Wc, WcStatus, WrOpcode};

use super::{End, answer};
use crate::executor::{Answer, Call, Cq, Qp, Refusal};
use crate::finding::{Finding, Verdict, same};

/// Number of polls before a wait lets time pass: most results are available immediately.
const EAGER_LOOKS: u32 = 50;

impl End {
    /// Waits for a condition, letting time pass, up to the deadline of the world.
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

    /// Polls once; stored completions are returned first.
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
        answer!(self.call(&call)?, Answer::Completions(all) => all)
    }

    /// Returns a completion if there is one now.
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

    /// Waits for a completion, and expects this request of a queue pair with this status.
    pub(crate) fn expect_at(&mut self, qp: Qp, wr_id: u64, status: WcStatus) -> Verdict<Wc> {
        let wc = self.wait()?;
        let what = format!("completion at the {} (wr_id, status, qp_num)", self.name);
        same(&what, (wc.wr_id, wc.status, wc.qp_num), (wr_id, status, qp.qpn))?;
        Ok(wc)
    }

    /// Like [`End::expect_at`], for the case's queue pair.
    pub(crate) fn expect(&mut self, wr_id: u64, status: WcStatus) -> Verdict {
        self.expect_at(self.qp, wr_id, status).map(drop)
    }

    /// Expects the success of a request of the case's queue pair.
    pub(crate) fn expect_ok(&mut self, wr_id: u64) -> Verdict {
        self.expect_wc(wr_id).map(drop)
    }

    /// Like [`End::expect_ok`], but returns the completion.
    pub(crate) fn expect_wc(&mut self, wr_id: u64) -> Verdict<Wc> {
        self.expect_at(self.qp, wr_id, WcStatus::SUCCESS)
    }

    /// Expects the success of a receive if the operation of the other end consumes one.
    pub(crate) fn expect_received(&mut self, op: WrOpcode, wr_id: u64) -> Verdict {
        if op.consumes_receive() { self.expect_ok(wr_id) } else { Ok(()) }
    }

    /// Expects no completion now and for the quiet time of the world.
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

    /// Waits until an operation whose completion the initiator has polled has arrived here. The completion of an
    /// unreliable WRITE only indicates that it was sent.
    pub(crate) fn let_arrive(&self, op: WrOpcode) {
        if self.setup.qp_type == QpType::Uc && op == WrOpcode::WRITE {
            self.pause();
        }
    }

    /// Waits until the queue pair is in a state; completions polled in the meantime are stored.
    pub(crate) fn expect_state(&mut self, qp: Qp, state: QpState) -> Verdict {
        let cq = self.cq;
        self.until(&format!("its queue pair to be in {state}"), |end| {
            let fresh = end.poll_fresh(cq, 16)?;
            end.stash.entry(cq.handle).or_default().extend(fresh);
            Ok((end.state(qp)? == state).then_some(()))
        })
    }

    /// Requests a notification from the case's completion queue.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<(), Refusal> {
        self.done(&Call::Arm { cq: self.cq.handle, solicited_only })
    }

    pub(crate) fn arm_on(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Refusal> {
        self.done(&Call::Arm { cq: cq.handle, solicited_only })
    }

    /// Returns the completion event that is available now: the id of its queue.
    pub(crate) fn cq_event(&mut self) -> Result<Option<u32>, Refusal> {
        answer!(self.call(&Call::TakeCqEvent(self.channel))?, Answer::CqEvent(event) => event)
    }

    /// Returns whether the channel becomes readable within the timeout.
    pub(crate) fn is_woken(&mut self, timeout_ms: u32) -> Result<bool, Refusal> {
        let call = Call::Sleep { channel: self.channel, timeout_ms };
        answer!(self.call(&call)?, Answer::Readable(readable) => readable)
    }

    /// Sleeps on the channel, without polling, until the event of a queue.
    pub(crate) fn expect_cq_event(&mut self, cq: Cq) -> Verdict {
        let event = self.until("a completion event", |end| {
            end.is_woken(1)?;
            Ok(end.cq_event()?)
        })?;
        same("the event's completion queue", event, cq.id)
    }

    /// Expects no completion event now and for the quiet time of the world.
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
            // Polling makes progress; its completions are stored.
            let fresh = end.poll_fresh(cq, 16)?;
            end.stash.entry(cq.handle).or_default().extend(fresh);
            while let Some(event) = end.async_event()? {
                if event == (AsyncEvent { kind, element }) {
                    return Ok(Some(()));
                }
                others.push(event);
            }
            Ok(None)
        });
        found.map_err(|finding| Finding { text: format!("{}; others: {others:?}", finding.text), ..finding })
    }

    /// Returns the asynchronous event that is available now.
    pub(crate) fn async_event(&mut self) -> Result<Option<AsyncEvent>, Refusal> {
        answer!(self.call(&Call::TakeAsync)?, Answer::Async(event) => event)
    }
}

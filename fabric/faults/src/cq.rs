//! Completion queues. What the provider's queue gives is *staged* until it is ready, then it has *arrived*: only then
//! may the program see it, and only then an armed queue makes an event.
//!
//! An armed queue is always one of three things, so that no wake-up is lost: the provider's queue is armed too, or an
//! event of it lies in the provider's channel, or something is staged and the channel's timer is set for it.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_verbs::{Notify, RawCq, Result, Wc};

use crate::due::Due;
use crate::pair::{Pairs, WorkQueue};
use crate::plan::{Kind, Plan};
use crate::timer::now_ns;

/// Shared by the queue's owner, its channel and the queue pairs that complete to it.
pub(crate) struct Core {
    id: u32,
    plan: Arc<Plan>,
    pairs: Arc<Pairs>,
    /// Of its channel, if it has one.
    due: Option<Arc<Due>>,
    state: Mutex<State>,
}

struct State {
    inner: Box<dyn RawCq>,
    /// By when they are ready; of those at one time, in their order.
    staged: BTreeMap<(u64, u64), Wc>,
    staged_before: u64,
    arrived: VecDeque<Wc>,
    armed: Option<Notify>,
    /// Armed for solicited completions: one of those that are ready by then was.
    solicited_ns: Option<u64>,
}

/// The provider's queue, for making queue pairs.
pub(crate) struct Locked<'a>(MutexGuard<'a, State>);

impl Locked<'_> {
    pub(crate) fn inner(&self) -> &dyn RawCq {
        &*self.0.inner
    }
}

impl Core {
    pub(crate) fn new(
        inner: Box<dyn RawCq>,
        plan: &Arc<Plan>,
        pairs: &Arc<Pairs>,
        due: Option<Arc<Due>>,
    ) -> Self {
        let state = State {
            staged: BTreeMap::new(),
            staged_before: 0,
            arrived: VecDeque::new(),
            armed: None,
            solicited_ns: None,
            inner,
        };
        let (plan, pairs) = (plan.clone(), pairs.clone());
        Self { id: state.inner.id(), plan, pairs, due, state: Mutex::new(state) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(self.state())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages what has come until now.
    pub(crate) fn stage_now(&self) {
        // An error is the next poll's to tell.
        let _ = self.stage_all(&mut self.state(), now_ns());
    }

    /// The provider's channel had an event of this queue.
    pub(crate) fn completions_came(&self) {
        let (mut state, now_ns) = (self.state(), now_ns());
        let staged = self.stage_all(&mut state, now_ns);
        self.arrive(&mut state, now_ns);
        let last_ns = state.staged.last_key_value().map(|((ready_ns, _), _)| *ready_ns);
        match state.armed {
            // The program has to look.
            Some(_) if staged.is_err() => self.fire(&mut state),
            Some(Notify::Solicited) => match last_ns {
                Some(_) => state.solicited_ns = last_ns,
                None => self.fire(&mut state),
            },
            Some(Notify::Any) if last_ns.is_none() => self.rearm(&mut state),
            _ => {}
        }
        self.set_timer(&state);
    }

    /// Something may be ready now.
    pub(crate) fn look(&self) {
        let mut state = self.state();
        self.arrive(&mut state, now_ns());
        self.set_timer(&state);
    }

    /// Forgets completions of a queue pair that is gone or begins anew.
    pub(crate) fn forget(&self, qp_num: u32) {
        let mut state = self.state();
        state.staged.retain(|_, wc| wc.qp_num != qp_num);
        state.arrived.retain(|wc| wc.qp_num != qp_num);
        if state.armed.is_some() && state.staged.is_empty() {
            // The provider's event may have been for what is forgotten.
            self.rearm(&mut state);
        }
        self.set_timer(&state);
    }

    fn stage_all(&self, state: &mut State, now_ns: u64) -> Result<()> {
        let mut batch = [Wc::default(); 16];
        loop {
            let taken = state.inner.poll(&mut batch)?;
            for wc in &batch[..taken] {
                self.stage(state, *wc, now_ns);
            }
            if taken < batch.len() {
                return Ok(());
            }
        }
    }

    fn stage(&self, state: &mut State, mut wc: Wc, now_ns: u64) {
        let queue = if wc.opcode.is_receive() { WorkQueue::Receive } else { WorkQueue::Send };
        let mut ready_ns = now_ns;
        if let Some(pair) = self.pairs.get(wc.qp_num) {
            pair.translate(&mut wc, queue);
            let kind = if queue == WorkQueue::Send { Kind::DelaySend } else { Kind::DelayReceive };
            let bits = self.plan.bits(kind, pair.index, pair.count(queue));
            ready_ns =
                pair.ready_ns(queue, wc.status, now_ns.saturating_add(self.plan.spec.delay.nanos(bits)));
        }
        state.staged.insert((ready_ns, state.staged_before), wc);
        state.staged_before += 1;
    }

    /// What is ready has arrived.
    fn arrive(&self, state: &mut State, now_ns: u64) {
        while let Some(first) = state.staged.first_entry() {
            let (ready_ns, _) = *first.key();
            if ready_ns > now_ns {
                return;
            }
            let wc = first.remove();
            let is_awaited = match state.armed {
                None => false,
                Some(Notify::Any) => true,
                Some(Notify::Solicited) => {
                    !wc.status.is_success() || state.solicited_ns.is_some_and(|ns| ready_ns >= ns)
                }
            };
            state.arrived.push_back(wc);
            if is_awaited {
                self.fire(state);
            }
        }
    }

    fn fire(&self, state: &mut State) {
        (state.armed, state.solicited_ns) = (None, None);
        if let Some(due) = &self.due {
            due.events.put(self.id);
        }
    }

    /// Arms the provider's queue again, and looks once more for what came before that.
    fn rearm(&self, state: &mut State) {
        let Some(notify) = state.armed else { return };
        let now_ns = now_ns();
        if state.inner.req_notify(notify).is_err() || self.stage_all(state, now_ns).is_err() {
            self.fire(state);
        }
        self.arrive(state, now_ns);
    }

    /// An armed queue looks again when the next completion is ready.
    fn set_timer(&self, state: &State) {
        if let (Some(due), Some(_), Some(((ready_ns, _), _))) =
            (&self.due, state.armed, state.staged.first_key_value())
        {
            due.timer.at_latest(*ready_ns);
        }
    }

    fn poll(&self, wc: &mut [Wc]) -> Result<usize> {
        let (mut state, now_ns) = (self.state(), now_ns());
        let staged = self.stage_all(&mut state, now_ns);
        self.arrive(&mut state, now_ns);
        self.set_timer(&state);
        let taken = wc.len().min(state.arrived.len());
        for (to, from) in wc.iter_mut().zip(state.arrived.drain(..taken)) {
            *to = from;
        }
        if taken == 0 { staged.map(|()| 0) } else { Ok(taken) }
    }

    fn req_notify(&self, notify: Notify) -> Result<()> {
        let (mut state, now_ns) = (self.state(), now_ns());
        // What came before makes no event; what is not ready yet comes later.
        let staged = self.stage_all(&mut state, now_ns);
        self.arrive(&mut state, now_ns);
        let notify = if state.armed == Some(Notify::Any) { Notify::Any } else { notify };
        state.inner.req_notify(notify)?;
        state.armed = Some(notify);
        // Came between: the program's next look finds it not ready, and there is no event of the provider's for it.
        let staged = staged.and_then(|()| self.stage_all(&mut state, now_ns));
        // Whether any of these was solicited is not known: better an event too many than one too few.
        state.solicited_ns = state.staged.last_key_value().map(|((ready_ns, _), _)| *ready_ns);
        if staged.is_err() {
            self.fire(&mut state);
        }
        self.set_timer(&state);
        Ok(())
    }
}

/// The owner's handle.
pub(crate) struct FaultyCq {
    pub(crate) core: Arc<Core>,
}

impl RawCq for FaultyCq {
    fn id(&self) -> u32 {
        self.core.id
    }

    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        self.core.poll(wc)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        self.core.req_notify(notify)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

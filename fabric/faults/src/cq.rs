//! Completion queues. Completions from the provider's queue are *staged* until they are ready. Then they have
//! *arrived*: only then may the program see them, and only then does an armed queue raise an event.
//!
//! Invariant: while a queue is armed, the provider's queue is armed too, or an event of it is in the provider's
//! channel, or a completion is staged and the channel's timer is set for it. Hence no wake-up is lost.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_verbs::{Notify, RawCq, Result, Wc};

use crate::due_events::DueEvents;
use crate::plan::{Kind, Plan};
use crate::qp_state::{FaultyQpStates, WorkQueue};
use crate::timer::now_ns;

/// State shared by the queue's owner, its channel and the queue pairs that complete to it.
pub(crate) struct Core {
    id: u32,
    plan: Arc<Plan>,
    qp_states: Arc<FaultyQpStates>,
    /// Timer and events of its channel, if it has one.
    due: Option<Arc<DueEvents>>,
    state: Mutex<State>,
}

struct State {
    inner: Box<dyn RawCq>,
    /// Staged completions by the time at which they are ready; those of equal time in their order of arrival.
    staged: BTreeMap<(u64, u64), Wc>,
    staged_before: u64,
    arrived: VecDeque<Wc>,
    armed: Option<Notify>,
    /// If the queue is armed for solicited completions: at least one of the completions that are ready by this time was
    /// solicited.
    solicited_ns: Option<u64>,
}

/// Access to the provider's queue, for the creation of queue pairs.
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
        qp_states: &Arc<FaultyQpStates>,
        due: Option<Arc<DueEvents>>,
    ) -> Self {
        let state = State {
            staged: BTreeMap::new(),
            staged_before: 0,
            arrived: VecDeque::new(),
            armed: None,
            solicited_ns: None,
            inner,
        };
        let (plan, qp_states) = (plan.clone(), qp_states.clone());
        Self { id: state.inner.id(), plan, qp_states, due, state: Mutex::new(state) }
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

    /// Stages the completions that have arrived at the provider's queue.
    pub(crate) fn stage_now(&self) {
        // The next poll reports an error.
        let _ = self.stage_all(&mut self.state(), now_ns());
    }

    /// Called when the provider's channel had an event of this queue.
    pub(crate) fn on_provider_event(&self) {
        let (mut state, now_ns) = (self.state(), now_ns());
        let staged = self.stage_all(&mut state, now_ns);
        self.arrive(&mut state, now_ns);
        let last_ns = state.staged.last_key_value().map(|((ready_ns, _), _)| *ready_ns);
        match state.armed {
            // The program must poll to receive the error.
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

    /// Called when a staged completion may be ready.
    pub(crate) fn service(&self) {
        let mut state = self.state();
        self.arrive(&mut state, now_ns());
        self.set_timer(&state);
    }

    /// Discards the completions of a queue pair that was destroyed or reset.
    pub(crate) fn discard(&self, qp_num: u32) {
        let mut state = self.state();
        state.staged.retain(|_, wc| wc.qp_num != qp_num);
        state.arrived.retain(|wc| wc.qp_num != qp_num);
        if state.armed.is_some() && state.staged.is_empty() {
            // The provider's event may have been for a discarded completion.
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
        if let Some(qp_state) = self.qp_states.get(wc.qp_num) {
            qp_state.translate(&mut wc, queue);
            let kind = if queue == WorkQueue::Send { Kind::DelaySend } else { Kind::DelayReceive };
            let bits = self.plan.bits(kind, qp_state.index, qp_state.count(queue));
            ready_ns =
                qp_state.ready_ns(queue, wc.status, now_ns.saturating_add(self.plan.spec.delay.nanos(bits)));
        }
        state.staged.insert((ready_ns, state.staged_before), wc);
        state.staged_before += 1;
    }

    /// Moves the completions that are ready to `arrived`.
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

    /// Arms the provider's queue again, and polls once more for completions that arrived before that.
    fn rearm(&self, state: &mut State) {
        let Some(notify) = state.armed else { return };
        let now_ns = now_ns();
        if state.inner.req_notify(notify).is_err() || self.stage_all(state, now_ns).is_err() {
            self.fire(state);
        }
        self.arrive(state, now_ns);
    }

    /// Sets the timer of an armed queue to the time at which the next completion is ready.
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
        // Completions that arrived earlier raise no event; those that are not ready yet do later.
        let staged = self.stage_all(&mut state, now_ns);
        self.arrive(&mut state, now_ns);
        let notify = if state.armed == Some(Notify::Any) { Notify::Any } else { notify };
        state.inner.req_notify(notify)?;
        state.armed = Some(notify);
        // These completions arrived in between: the provider raises no event for them, and the program's next poll does
        // not find them ready.
        let staged = staged.and_then(|()| self.stage_all(&mut state, now_ns));
        // It is unknown whether any of these was solicited, so assume that one was: a superfluous event is better than
        // a missing one.
        state.solicited_ns = state.staged.last_key_value().map(|((ready_ns, _), _)| *ready_ns);
        if staged.is_err() {
            self.fire(&mut state);
        }
        self.set_timer(&state);
        Ok(())
    }
}

/// The application thread's handle of a completion queue.
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

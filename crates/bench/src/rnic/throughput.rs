//! As many requests as possible, several outstanding: in chains, some of them signalled, over queue pairs in turn.

use super::RnicError;
use super::end::End;
use super::flow::{Credits, Flow};
use super::task::{RnicTask, Tuning};
use super::waiting::{Halt, Watch};
use crate::baseline::BaselinePlan;
use crate::measure::{RoundTrips, ping_pong};
use farcall_verbs::{SendFlags, SendWr, Sge, Wc};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Messages between two readings of the clock, at least: reading and recording cost as much as posting a short one.
const BURST: u32 = 32;
/// After so much silence at the end everything has come.
const SETTLED_AFTER: Duration = Duration::from_millis(20);

/// What was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// Bursts, recorded.
    pub(super) bursts: RoundTrips,
    /// Messages in a burst.
    pub(super) messages_each: u32,
    /// Messages in all, warm-up included.
    pub(super) total: u64,
}

/// Requests in ready-made chains.
struct Chains<'a> {
    /// Of each queue pair whose requests differ (one for all, except of datagrams): the chains of a signalling period.
    sets: Vec<Vec<Vec<SendWr<'a>>>>,
    /// Where in a chain every so many are signalled; in the last chain of a period.
    signal_every: usize,
}

impl<'a> Chains<'a> {
    fn new(end: &End, task: &RnicTask, sges: &'a [Sge]) -> Self {
        let Tuning { chain, signal_every, .. } = task.tuning;
        let chains = (signal_every / chain).max(1);
        let differ = end.lanes[0].datagram_target(0).is_some();
        let sets = if differ { task.tuning.qps as usize } else { 1 };
        let of = |qp: usize| -> Vec<Vec<SendWr<'a>>> {
            let request = end.request(task.operation, (0, qp), sges, 0);
            let at = |number: u32| match (number + 1) % signal_every {
                0 => request.with_flags(SendFlags::SIGNALED),
                _ => request,
            };
            (0..chains).map(|index| (index * chain..(index + 1) * chain).map(at).collect()).collect()
        };
        Self { sets: (0..sets).map(of).collect(), signal_every: signal_every as usize }
    }

    /// The chain that queue pair `qp` posts in `phase` of its period. Its completions name the queue pair.
    #[inline]
    fn get(&mut self, qp: usize, phase: usize) -> &[SendWr<'a>] {
        let set = if self.sets.len() == 1 { 0 } else { qp };
        let chain = &mut self.sets[set][phase];
        if chain.len() < self.signal_every {
            if let Some(last) = chain.last_mut() {
                last.wr_id = qp as u64;
            }
        } else {
            chain
                .iter_mut()
                .skip(self.signal_every - 1)
                .step_by(self.signal_every)
                .for_each(|wr| wr.wr_id = qp as u64);
        }
        chain
    }

    fn phases(&self) -> usize {
        self.sets[0].len()
    }
}

/// What a queue pair has under way.
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    outstanding: u32,
    /// Messages that no credit has come for.
    uncredited: u32,
    phase: usize,
}

struct Poster<'a> {
    chains: Chains<'a>,
    under_way: Vec<UnderWay>,
    tuning: Tuning,
    flow: Option<Flow>,
    total: u64,
}

impl Poster<'_> {
    /// Posts one chain when the window has room for it.
    #[inline]
    fn post(&mut self, end: &mut End, qp: usize, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let Tuning { chain, window, .. } = self.tuning;
        while self.under_way[qp].outstanding + chain > window {
            self.complete(end, watch)?;
        }
        if let Some(flow) = self.flow {
            self.await_credit(end, (flow, qp), watch)?;
        }
        let phase = self.under_way[qp].phase;
        // SAFETY: the place named is neither read nor written while requests are under way (its content is of no
        // interest), and outlives them: they are waited for in the end, or the queue pair is dropped before the memory.
        unsafe { end.lanes[0].qps[qp].post_send(self.chains.get(qp, phase))? };
        let state = &mut self.under_way[qp];
        state.outstanding += chain;
        state.phase = if phase + 1 == self.chains.phases() { 0 } else { phase + 1 };
        self.total += u64::from(chain);
        Ok(())
    }

    /// Waits until the target has receives for another chain.
    #[inline]
    fn await_credit(
        &mut self,
        end: &mut End,
        (flow, qp): (Flow, usize),
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let chain = self.tuning.chain;
        while self.under_way[qp].uncredited + chain > flow.capacity {
            self.complete(end, watch)?;
            if watch.is_lost() {
                // Messages or credits are: what is under way has arrived by now, or never will.
                self.under_way.iter_mut().for_each(|state| state.uncredited = 0);
            }
        }
        self.under_way[qp].uncredited += chain;
        Ok(())
    }

    #[inline]
    fn complete(&mut self, end: &mut End, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let count = end.look(watch)?;
        for index in 0..count {
            let wc = end.wcs[index];
            if wc.opcode.is_receive() {
                self.take_credit(end, &wc)?;
            } else {
                // Each signalled one stands for those before it.
                self.under_way[wc.wr_id as usize].outstanding -= self.tuning.signal_every;
            }
        }
        Ok(())
    }

    fn take_credit(&mut self, end: &mut End, wc: &Wc) -> Result<(), RnicError> {
        let qp = end.receives.qp_of(wc);
        if let (Some(flow), Some(state)) = (self.flow, self.under_way.get_mut(qp)) {
            state.uncredited = state.uncredited.saturating_sub(flow.credit_every);
        }
        end.received(qp)
    }

    /// Waits for everything that was posted.
    fn drain(&mut self, end: &mut End, watch: &mut Watch<'_>) -> Result<(), Halt> {
        for qp in 0..self.under_way.len() {
            while self.under_way[qp].phase != 0 {
                self.post(end, qp, watch)?;
            }
            while self.under_way[qp].outstanding > 0 {
                self.complete(end, watch)?;
            }
        }
        Ok(())
    }
}

/// Measures.
pub(super) fn measure(
    end: &mut End,
    task: &RnicTask,
    plan: &BaselinePlan,
    watch: &mut Watch<'_>,
) -> Result<Sent, RnicError> {
    let sges = [end.memory.outgoing_sge(0)];
    let tuning = task.tuning;
    let active = tuning.active_qps as usize;
    let mut poster = Poster {
        chains: Chains::new(end, task, &sges),
        under_way: vec![UnderWay::default(); active],
        tuning,
        flow: Flow::of(task, end.receives_there)?,
        total: 0,
    };
    let posts = (BURST / tuning.chain).max(1);
    let mut qp = 0;
    let bursts = ping_pong(plan.warm_up, plan.duration, |_| {
        for _ in 0..posts {
            poster.post(end, qp, watch)?;
            qp = if qp + 1 == active { 0 } else { qp + 1 };
        }
        Ok::<(), Halt>(())
    })?;
    poster.drain(end, watch)?;
    Ok(Sent { bursts, messages_each: posts * tuning.chain, total: poster.total })
}

/// The target's part of messages that consume receives: takes them, posts receives again and returns credits, until it is
/// called and nothing comes any more.
pub(super) fn absorb(end: &mut End, task: &RnicTask, watch: &mut Watch<'_>) -> Result<Infallible, Halt> {
    let sges = [Sge { length: 1, ..end.memory.outgoing_sge(0) }];
    let flow = Flow::of(task, end.receives.each())?;
    let mut credits = flow.map(|flow| Credits::new(end, task, flow, &sges));
    loop {
        let count = match end.look(watch) {
            Ok(count) => count,
            Err(Halt::Called) => return settle(end, credits),
            Err(halt) => return Err(halt),
        };
        take(end, count, credits.as_mut())?;
    }
}

/// Takes note of the messages among `count` completions, a run of one queue pair at a time.
#[inline]
fn take(end: &mut End, count: usize, mut credits: Option<&mut Credits<'_>>) -> Result<(), RnicError> {
    let mut index = 0;
    while index < count {
        let wc = end.wcs[index];
        index += 1;
        if !wc.opcode.is_receive() {
            // A credit's.
            continue;
        }
        let qp = end.receives.qp_of(&wc);
        let mut run = 1;
        while index < count && end.wcs[index].opcode.is_receive() && end.receives.qp_of(&end.wcs[index]) == qp
        {
            index += 1;
            run += 1;
        }
        end.received_many(qp, run)?;
        if let Some(credits) = credits.as_deref_mut() {
            credits.count(end, qp, run)?;
        }
    }
    Ok(())
}

fn settle(end: &mut End, mut credits: Option<Credits<'_>>) -> Result<Infallible, Halt> {
    let mut last = Instant::now();
    while last.elapsed() < SETTLED_AFTER {
        let count = end.poll()?;
        if count > 0 {
            take(end, count, credits.as_mut())?;
            last = Instant::now();
        }
    }
    Err(Halt::Called)
}

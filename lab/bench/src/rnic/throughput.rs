//! Throughput: as many requests as possible with several outstanding. Requests are posted in chains, some of them
//! signalled, over the queue pairs in turn.

use super::RnicError;
use super::endpoint::BenchEndpoint;
use super::flow::{Credits, Flow};
use super::task::{RnicTask, Tuning};
use super::waiting::{Halt, Watch};
use crate::measure::{RoundTrips, ping_pong};
use farcall_link::{Chain, Transport};
use farcall_verbs::Wc;
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Minimum number of messages between two readings of the clock: reading and recording cost as much as posting a short
/// one.
const BURST: u32 = 32;
/// Time without messages at the end after which no more are expected.
const SETTLED_AFTER: Duration = Duration::from_millis(20);

/// Sent messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// Recorded bursts.
    pub(super) bursts: RoundTrips,
    /// Messages per burst.
    pub(super) messages_each: u32,
    /// Total number of messages, warm-up included.
    pub(super) total: u64,
}

/// Returns the chains of one signalling period, prepared for each queue pair whose requests differ (one set for all
/// queue pairs, except with datagrams).
fn chains(end: &BenchEndpoint, task: &RnicTask) -> Result<Vec<Vec<Chain>>, RnicError> {
    let Tuning { chain, signal_every, qps, .. } = task.tuning;
    let sets = if task.transport == Transport::Ud { qps as usize } else { 1 };
    let is_signalled = |number: u32| (number + 1).is_multiple_of(signal_every);
    let of = |(qp, index): (usize, u32)| {
        let signalled = (index * chain..(index + 1) * chain).map(is_signalled);
        end.chain(task.operation, (0, qp), end.memory.outgoing(0), signalled)
    };
    let period = (signal_every / chain).max(1);
    (0..sets).map(|qp| (0..period).map(|index| of((qp, index))).collect()).collect()
}

/// Outstanding messages of a queue pair.
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    /// Messages for which no credit has arrived.
    uncredited: u32,
    phase: usize,
}

struct Poster {
    chains: Vec<Vec<Chain>>,
    under_way: Vec<UnderWay>,
    tuning: Tuning,
    flow: Option<Flow>,
    total: u64,
}

impl Poster {
    /// Posts one chain as soon as the window has space for it.
    #[inline]
    fn post(&mut self, end: &mut BenchEndpoint, qp: usize, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let Tuning { chain, window, .. } = self.tuning;
        while end.groups[0].qps[qp].outstanding() + chain > window {
            self.complete(end, watch)?;
        }
        if let Some(flow) = self.flow {
            self.await_credit(end, (flow, qp), watch)?;
        }
        let set = if self.chains.len() == 1 { 0 } else { qp };
        let (chains, phase) = (&mut self.chains[set], &mut self.under_way[qp].phase);
        // The named slot is neither read nor written while requests are outstanding: its content is irrelevant.
        end.groups[0].qps[qp].post_chain(&mut chains[*phase], qp as u32)?;
        *phase = if *phase + 1 == chains.len() { 0 } else { *phase + 1 };
        self.total += u64::from(chain);
        Ok(())
    }

    /// Waits until the target has receives for another chain.
    #[inline]
    fn await_credit(
        &mut self,
        end: &mut BenchEndpoint,
        (flow, qp): (Flow, usize),
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let chain = self.tuning.chain;
        while self.under_way[qp].uncredited + chain > flow.capacity {
            self.complete(end, watch)?;
            if watch.is_lost() {
                // Messages or credits were lost: the outstanding ones have arrived by now or never will.
                self.under_way.iter_mut().for_each(|state| state.uncredited = 0);
            }
        }
        self.under_way[qp].uncredited += chain;
        Ok(())
    }

    #[inline]
    fn complete(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let count = end.look(watch)?;
        for index in 0..count {
            let wc = end.wcs[index];
            if wc.opcode.is_receive() {
                self.take_credit(end, &wc)?;
            } else {
                end.completed(&wc);
            }
        }
        Ok(())
    }

    fn take_credit(&mut self, end: &mut BenchEndpoint, wc: &Wc) -> Result<(), RnicError> {
        let qp = end.receives.qp_of(wc);
        if let (Some(flow), Some(state)) = (self.flow, self.under_way.get_mut(qp)) {
            state.uncredited = state.uncredited.saturating_sub(flow.credit_every);
        }
        end.received(qp)
    }

    /// Waits for the completion of all posted requests.
    fn drain(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<(), Halt> {
        for qp in 0..self.under_way.len() {
            while self.under_way[qp].phase != 0 {
                self.post(end, qp, watch)?;
            }
            while end.groups[0].qps[qp].outstanding() > 0 {
                self.complete(end, watch)?;
            }
        }
        Ok(())
    }
}

impl Sent {
    /// Returns the recorded messages a second.
    pub(super) fn per_second(&self) -> f64 {
        self.bursts.per_second * f64::from(self.messages_each)
    }
}

/// Measures for `duration`, after `warm_up`.
pub(super) fn measure(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    (warm_up, duration): (Duration, Duration),
    watch: &mut Watch<'_>,
) -> Result<Sent, RnicError> {
    let tuning = task.tuning;
    let active = tuning.active_qps as usize;
    let mut poster = Poster {
        chains: chains(end, task)?,
        under_way: vec![UnderWay::default(); active],
        tuning,
        flow: Flow::of(task, end.receives_there)?,
        total: 0,
    };
    let posts = (BURST / tuning.chain).max(1);
    let mut qp = 0;
    let bursts = ping_pong(warm_up, duration, |_| {
        for _ in 0..posts {
            poster.post(end, qp, watch)?;
            qp = if qp + 1 == active { 0 } else { qp + 1 };
        }
        Ok::<(), Halt>(())
    });
    let bursts = bursts.and_then(|bursts| poster.drain(end, watch).map(|()| bursts));
    let bursts = bursts.map_err(Halt::of_initiator)?;
    Ok(Sent { bursts, messages_each: posts * tuning.chain, total: poster.total })
}

/// Target of messages that consume receives. Consumes them, posts receives again and returns credits until the
/// initiator has ended the measurement and no more messages arrive.
pub(super) fn absorb(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    watch: &mut Watch<'_>,
) -> Result<Infallible, Halt> {
    let flow = Flow::of(task, end.receives.each())?;
    let mut credits = flow.map(|flow| Credits::new(end, task, flow)).transpose()?;
    loop {
        let count = match end.look(watch) {
            Ok(count) => count,
            Err(Halt::Called) => return settle(end, credits),
            Err(halt) => return Err(halt),
        };
        take(end, count, credits.as_mut())?;
    }
}

/// Records the messages among `count` completions, one run of consecutive messages of a queue pair at a time.
#[inline]
fn take(end: &mut BenchEndpoint, count: usize, mut credits: Option<&mut Credits>) -> Result<(), RnicError> {
    let mut index = 0;
    while index < count {
        let wc = end.wcs[index];
        index += 1;
        if !wc.opcode.is_receive() {
            // Completion of a credit.
            end.completed(&wc);
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

fn settle(end: &mut BenchEndpoint, mut credits: Option<Credits>) -> Result<Infallible, Halt> {
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

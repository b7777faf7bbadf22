//! Latency of single messages: round trips, or times until the initiator's completion.

use super::RnicError;
use super::endpoint::BenchEndpoint;
use super::memory::{FILL, FILL_WORD};
use super::operation::Operation;
use super::task::{RnicTask, RnicTest};
use super::waiting::{Halt, Watch};
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::PairPlan;
use farcall_link::{Chain, Transport};
use std::convert::Infallible;

/// Counts in addition to the latencies.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LatencyCounts {
    /// Number of executed requests, warm-up included.
    pub(super) sent: u64,
    /// Number of messages that were lost in either direction and sent again.
    pub(super) lost: u64,
}

/// Polls of memory between two polls of the completion queue.
const TURNS_PER_POLL: u32 = 16;

/// Returns the mark of message `number`. Marks of consecutive messages differ, and the first differs from the fill
/// byte.
fn mark_of(number: u64) -> u8 {
    (number % 128) as u8
}

/// Sends one message at a time, over the queue pairs in turn.
struct Sender {
    /// Unsignalled and signalled request of each queue pair whose requests differ (one pair of requests for all queue
    /// pairs, except with datagrams).
    requests: Vec<[Chain; 2]>,
    /// Unsignalled requests of each queue pair since the last signalled one.
    unsignalled: Vec<u32>,
    signal_every: u32,
    sent: u64,
    /// Number of messages that arrived while the sender waited for a completion, and queue pair of the last one.
    arrived: usize,
    from: usize,
}

impl Sender {
    fn new(end: &BenchEndpoint, task: &RnicTask) -> Result<Self, RnicError> {
        let qps = task.tuning.qps as usize;
        let request = |qp, is_signalled| {
            end.chain(task.operation, (0, qp), end.memory.outgoing(0), std::iter::once(is_signalled))
        };
        let sets = if task.transport == Transport::Ud { qps } else { 1 };
        let requests = (0..sets).map(|qp| Ok::<_, RnicError>([request(qp, false)?, request(qp, true)?]));
        // A message that is not inlined must complete before the next one overwrites it.
        let is_each_signalled = !end.is_inline || task.test == RnicTest::Completion;
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            unsignalled: vec![0; qps],
            signal_every: if is_each_signalled {
                1
            } else {
                task.tuning.signal_every.min(task.queue_depth() / 2)
            },
            sent: 0,
            arrived: 0,
            from: 0,
        })
    }

    /// Posts one request, and waits for its completion if it is signalled.
    #[inline]
    fn send(&mut self, end: &mut BenchEndpoint, qp: usize, watch: &mut Watch<'_>) -> Result<(), Halt> {
        self.unsignalled[qp] += 1;
        self.sent += 1;
        let is_signalled = self.unsignalled[qp] >= self.signal_every;
        let set = if self.requests.len() == 1 { 0 } else { qp };
        let request = &mut self.requests[set][usize::from(is_signalled)];
        end.groups[0].qps[qp].post_chain(request, qp as u32)?;
        if is_signalled {
            self.unsignalled[qp] = 0;
            while !self.look(end, watch)? {}
        }
        Ok(())
    }

    /// Polls completions; returns whether a request completed.
    #[inline]
    fn look(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<bool, Halt> {
        let count = end.look(watch)?;
        Ok(self.take(end, count))
    }

    /// Handles `count` polled completions; returns whether a request completed.
    #[inline]
    fn take(&mut self, end: &mut BenchEndpoint, count: usize) -> bool {
        let mut is_sent = false;
        for index in 0..count {
            let wc = end.wcs[index];
            if wc.opcode.is_receive() {
                self.arrived += 1;
                self.from = end.receives.qp_of(&wc);
            } else {
                end.completed(&wc);
                is_sent = true;
            }
        }
        is_sent
    }

    /// Waits until a WRITE that ends with `mark` has arrived. Polls the completion queue at intervals, as an endpoint
    /// does: a software RNIC receives packets in that call.
    #[inline]
    fn wait_for_bytes(
        &mut self,
        end: &mut BenchEndpoint,
        mark: u8,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let mut turns = 0_u32;
        while end.memory.last_incoming(0) != mark {
            turns += 1;
            if turns.is_multiple_of(TURNS_PER_POLL) {
                let count = end.poll()?;
                self.take(end, count);
            }
            watch.nothing()?;
        }
        watch.seen();
        Ok(())
    }
}

/// Measures the latency of `task`.
pub(super) fn measure(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    plan: &PairPlan,
    watch: &mut Watch<'_>,
) -> Result<(RoundTrips, LatencyCounts), RnicError> {
    let mut sender = Sender::new(end, task)?;
    let active = task.tuning.active_qps as usize;
    let mut lost = 0;
    let mut qp = 0;
    let round_trips = ping_pong(plan.warm_up, plan.duration, |number| {
        match (task.test, task.operation) {
            (RnicTest::PingPong, Operation::Write) => write_and_look(end, &mut sender, qp, number, watch)?,
            (RnicTest::PingPong, _) => {
                lost += send_and_receive(end, &mut sender, (task, qp), mark_of(number), watch)?;
            }
            _ => complete_one(end, &mut sender, (task.operation, qp), number, watch)?,
        }
        qp = if qp + 1 == active { 0 } else { qp + 1 };
        Ok::<(), Halt>(())
    })
    .map_err(Halt::of_initiator)?;
    Ok((round_trips, LatencyCounts { sent: sender.sent, lost }))
}

/// Executes one round trip of WRITEs; polls memory for the last byte of the response.
#[inline]
fn write_and_look(
    end: &mut BenchEndpoint,
    sender: &mut Sender,
    qp: usize,
    number: u64,
    watch: &mut Watch<'_>,
) -> Result<(), Halt> {
    let mark = mark_of(number);
    end.memory.mark_outgoing(0, mark);
    sender.send(end, qp, watch)?;
    sender.wait_for_bytes(end, mark, watch)
}

/// Executes one round trip of messages that consume receives. Returns how often the message was sent again.
#[inline]
fn send_and_receive(
    end: &mut BenchEndpoint,
    sender: &mut Sender,
    (task, qp): (&RnicTask, usize),
    mark: u8,
    watch: &mut Watch<'_>,
) -> Result<u64, Halt> {
    let mut lost = 0;
    end.memory.mark_outgoing(0, mark);
    sender.send(end, qp, watch)?;
    loop {
        while sender.arrived == 0 {
            sender.look(end, watch)?;
            if task.is_unreliable() && watch.is_lost() {
                lost += 1;
                sender.send(end, qp, watch)?;
            }
        }
        sender.arrived -= 1;
        let came = end.memory.last_incoming(0);
        end.received(sender.from)?;
        if came == mark {
            return Ok(lost);
        }
        // Response to a message that had been considered lost.
        if !task.is_unreliable() {
            return Err(RnicError::Bytes("a message came back with another last byte").into());
        }
    }
}

/// Executes one request and waits for its completion.
#[inline]
fn complete_one(
    end: &mut BenchEndpoint,
    sender: &mut Sender,
    (operation, qp): (Operation, usize),
    number: u64,
    watch: &mut Watch<'_>,
) -> Result<(), Halt> {
    end.memory.mark_outgoing(0, !FILL);
    sender.send(end, qp, watch)?;
    let is_right = match operation {
        Operation::Read => end.memory.last_outgoing(0) == FILL,
        Operation::CompareSwap => end.memory.word_outgoing(0) == FILL_WORD,
        Operation::FetchAdd => end.memory.word_outgoing(0) == FILL_WORD.wrapping_add(number - 1),
        _ => true,
    };
    if is_right { Ok(()) } else { Err(RnicError::Bytes("a READ or atomic brought another value").into()) }
}

/// Runs the target of a ping-pong of WRITEs.
pub(super) fn answer_writes(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    watch: &mut Watch<'_>,
) -> Result<Infallible, Halt> {
    let mut sender = Sender::new(end, task)?;
    let active = task.tuning.active_qps as usize;
    let mut qp = 0;
    let mut number = 1u64;
    loop {
        let mark = mark_of(number);
        sender.wait_for_bytes(end, mark, watch)?;
        end.memory.mark_outgoing(0, mark);
        sender.send(end, qp, watch)?;
        qp = if qp + 1 == active { 0 } else { qp + 1 };
        number += 1;
    }
}

/// Runs the target of a ping-pong of messages that consume receives.
pub(super) fn answer_messages(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    watch: &mut Watch<'_>,
) -> Result<Infallible, Halt> {
    let mut sender = Sender::new(end, task)?;
    loop {
        while sender.arrived == 0 {
            sender.look(end, watch)?;
        }
        sender.arrived -= 1;
        let qp = sender.from;
        end.memory.mark_outgoing(0, end.memory.last_incoming(0));
        end.received(qp)?;
        sender.send(end, qp, watch)?;
    }
}

//! Receives: posted before any message arrives, and posted again in batches as they are consumed.

use super::RnicError;
use super::endpoint::{self, EndpointPlan};
use super::memory::Memory;
use super::qp_group::QpGroup;
use farcall_link::{Receive, ReceiveChain, SharedReceives, receive_tag};
use farcall_verbs::Wc;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of receives posted together.
const CHAIN_MAX: u32 = 32;

pub(super) struct Receives {
    shared: Option<(SharedReceives, u32)>,
    /// Number of receives of one queue.
    depth: u32,
    batch: u32,
    /// Receives of each queue if each receive has a slot of its own; otherwise one chain for all queues.
    chains: Vec<ReceiveChain>,
    places_differ: bool,
    queues: Vec<Queue>,
    qps: usize,
    /// Index of the queue pair of each queue pair number; used with a shared queue.
    index_of_qp_num: HashMap<u32, usize>,
    /// Number of received messages.
    pub(super) total: u64,
}

/// State of a queue pair's receive queue, or of the shared one.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    /// Next receive of the queue's chain.
    next: u32,
    /// Number of consumed receives that are to be posted again.
    consumed: u32,
}

impl Receives {
    pub(super) fn new(
        mut shared: Option<(SharedReceives, u32)>,
        groups: &[QpGroup],
        depth: u32,
        plan: &EndpointPlan,
        memory: &Memory,
    ) -> Self {
        if let Some((shared, _)) = &mut shared {
            shared.attach(Arc::clone(memory.region()));
        }
        let qps = groups.iter().flat_map(|group| &group.qps);
        let qp_nums: Vec<u32> = qps.clone().map(|qp| qp.qp_num()).collect();
        let depth = shared.as_ref().map_or(depth, |(_, depth)| *depth);
        let queues = if shared.is_some() { 1 } else { qp_nums.len() };
        let (distinct, len) = if plan.places_differ { (queues, depth) } else { (1, CHAIN_MAX) };
        let chain_of = |queue: usize| {
            let place_of = |at| if plan.places_differ { queue * depth as usize + at as usize } else { 0 };
            let places: Vec<_> =
                (0..len).map(place_of).map(|at| ([memory.receive(at)], tag_of(queue, at))).collect();
            let receives: Vec<_> = places.iter().map(|(local, tag)| Receive { local, tag: *tag }).collect();
            match &shared {
                Some((shared, _)) => shared.receive_chain(&receives),
                None => groups[0].qps[0].receive_chain(&receives),
            }
        };
        let chains = (0..distinct).map(chain_of).collect();
        let index_of_qp_num = match shared {
            Some(_) => (0..).zip(&qp_nums).map(|(index, qp_num)| (*qp_num, index)).collect(),
            None => HashMap::new(),
        };
        Self {
            shared,
            depth,
            batch: plan.receive_batch.clamp(1, depth.max(1)),
            chains,
            places_differ: plan.places_differ,
            queues: vec![Queue::default(); queues],
            qps: qp_nums.len(),
            index_of_qp_num,
            total: 0,
        }
    }

    /// Returns the number of messages of one queue pair for which there is always a receive, regardless of the traffic
    /// on the others.
    pub(super) fn each(&self) -> u32 {
        let always_posted = (self.depth + 1).saturating_sub(self.batch);
        always_posted / (self.qps / self.queues.len()).max(1) as u32
    }

    /// Posts all receives.
    pub(super) fn post_all(&mut self, groups: &mut [QpGroup]) -> Result<(), RnicError> {
        (0..self.queues.len()).try_for_each(|queue| self.post(queue, self.depth, groups))
    }

    /// Returns the index of the queue pair that received the message.
    #[inline]
    pub(super) fn qp_of(&self, wc: &Wc) -> usize {
        if self.shared.is_none() {
            return (receive_tag(wc) >> 32) as usize;
        }
        self.index_of_qp_num.get(&wc.qp_num).copied().unwrap_or(0)
    }

    /// Records `count` receives consumed by queue pair `qp`, and posts them again when a batch is complete.
    #[inline]
    pub(super) fn consumed(
        &mut self,
        qp: usize,
        count: u32,
        groups: &mut [QpGroup],
    ) -> Result<(), RnicError> {
        self.total += u64::from(count);
        let queue = if self.shared.is_some() { 0 } else { qp };
        self.queues[queue].consumed += count;
        if self.queues[queue].consumed < self.batch {
            return Ok(());
        }
        let count = std::mem::take(&mut self.queues[queue].consumed);
        if self.shared.is_none() {
            endpoint::qp(groups, queue).complete_receives(count);
        }
        self.post(queue, count, groups)
    }

    fn post(&mut self, queue: usize, count: u32, groups: &mut [QpGroup]) -> Result<(), RnicError> {
        let mut left = count;
        if !self.places_differ {
            while left > 0 {
                let now = left.min(CHAIN_MAX);
                self.chains[0].set_tag(0..now as usize, tag_of(queue, 0));
                self.hand_over(queue, 0, 0..now as usize, groups)?;
                left -= now;
            }
            return Ok(());
        }
        while left > 0 {
            let from = self.queues[queue].next;
            let now = left.min(CHAIN_MAX).min(self.depth - from);
            self.hand_over(queue, queue, from as usize..(from + now) as usize, groups)?;
            self.queues[queue].next = if from + now == self.depth { 0 } else { from + now };
            left -= now;
        }
        Ok(())
    }

    #[inline]
    fn hand_over(
        &mut self,
        queue: usize,
        chain: usize,
        which: Range<usize>,
        groups: &mut [QpGroup],
    ) -> Result<(), RnicError> {
        let chain = &self.chains[chain];
        match &mut self.shared {
            Some((shared, _)) => shared.post_receives(chain, which)?,
            None => endpoint::qp(groups, queue).post_receives(chain, which)?,
        }
        Ok(())
    }
}

fn tag_of(queue: usize, place: usize) -> u64 {
    (queue as u64) << 32 | place as u64
}

/// Returns the slot in which a receive placed its message.
#[inline]
pub(super) fn place_of_receive(wc: &Wc) -> usize {
    (receive_tag(wc) & 0xffff_ffff) as usize
}

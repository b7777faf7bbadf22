//! Receives: posted before anything comes, and posted again in batches as they are consumed.

use super::RnicError;
use super::end::{self, EndPlan};
use super::lane::Lane;
use super::memory::Memory;
use farcall_verbs::{RawSrq, RecvWr, Wc};
use std::collections::HashMap;

/// Set in the `wr_id` of receives, with the queue pair's index and the place below.
const IS_RECEIVE: u64 = 1 << 63;
/// Receives posted at once at most.
const CHAIN_MAX: usize = 32;

pub(super) struct Receives {
    shared: Option<(Box<dyn RawSrq>, u32)>,
    /// Of one queue pair.
    depth: u32,
    batch: u32,
    places_differ: bool,
    queues: Vec<Queue>,
    qps: usize,
    /// With a shared queue, which queue pair a number is.
    index_of_qp_num: HashMap<u32, usize>,
    /// How many messages came.
    pub(super) total: u64,
}

/// Of a queue pair, or the shared one.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    /// Where the next receive puts its message, among the places of this queue.
    next_place: u32,
    /// Receives to post again.
    consumed: u32,
}

impl Receives {
    pub(super) fn new(
        shared: Option<(Box<dyn RawSrq>, u32)>,
        lanes: &[Lane],
        depth: u32,
        plan: &EndPlan,
    ) -> Self {
        let qp_nums: Vec<u32> = lanes.iter().flat_map(Lane::qp_nums).collect();
        let depth = shared.as_ref().map_or(depth, |(_, depth)| *depth);
        let qps = qp_nums.len();
        let queues = if shared.is_some() { 1 } else { qps };
        let index_of_qp_num = match shared {
            Some(_) => qp_nums.into_iter().enumerate().map(|(index, qp_num)| (qp_num, index)).collect(),
            None => HashMap::new(),
        };
        Self {
            shared,
            depth,
            batch: plan.receive_batch.clamp(1, depth.max(1)),
            places_differ: plan.places_differ,
            queues: vec![Queue::default(); queues],
            qps,
            index_of_qp_num,
            total: 0,
        }
    }

    /// Messages of one queue pair for which there is always a receive, whatever comes over the others.
    pub(super) fn each(&self) -> u32 {
        let always_posted = (self.depth + 1).saturating_sub(self.batch);
        always_posted / (self.qps / self.queues.len()).max(1) as u32
    }

    /// Posts all there are.
    pub(super) fn post_all(&mut self, lanes: &mut [Lane], memory: &Memory) -> Result<(), RnicError> {
        for queue in 0..self.queues.len() {
            self.post(queue, self.depth, lanes, memory)?;
        }
        Ok(())
    }

    /// The queue pair that a message came over.
    #[inline]
    pub(super) fn qp_of(&self, wc: &Wc) -> usize {
        if self.shared.is_none() {
            return (wc.wr_id >> 32 & 0x7fff_ffff) as usize;
        }
        self.index_of_qp_num.get(&wc.qp_num).copied().unwrap_or(0)
    }

    /// `count` receives of queue pair `qp` were consumed.
    #[inline]
    pub(super) fn consumed(
        &mut self,
        qp: usize,
        count: u32,
        lanes: &mut [Lane],
        memory: &Memory,
    ) -> Result<(), RnicError> {
        self.total += u64::from(count);
        let queue = if self.shared.is_some() { 0 } else { qp };
        self.queues[queue].consumed += count;
        if self.queues[queue].consumed < self.batch {
            return Ok(());
        }
        let count = std::mem::take(&mut self.queues[queue].consumed);
        self.post(queue, count, lanes, memory)
    }

    fn post(
        &mut self,
        queue: usize,
        count: u32,
        lanes: &mut [Lane],
        memory: &Memory,
    ) -> Result<(), RnicError> {
        if count == 1 {
            return self.post_chain::<1>(queue, 1, lanes, memory);
        }
        let mut left = count as usize;
        while left > 0 {
            let chain = left.min(CHAIN_MAX);
            self.post_chain::<CHAIN_MAX>(queue, chain, lanes, memory)?;
            left -= chain;
        }
        Ok(())
    }

    /// Posts `count` receives, at most `N`, with one call.
    fn post_chain<const N: usize>(
        &mut self,
        queue: usize,
        count: usize,
        lanes: &mut [Lane],
        memory: &Memory,
    ) -> Result<(), RnicError> {
        if !self.places_differ {
            let sges = [memory.receive_sge(0)];
            return self.hand_over(queue, &[RecvWr::new(wr_id_of(queue, 0), &sges); N][..count], lanes);
        }
        let mut places = [0; N];
        places[..count].fill_with(|| self.take_place(queue));
        let sges = places.map(|place| [memory.receive_sge(place)]);
        let wrs: [RecvWr<'_>; N] =
            std::array::from_fn(|index| RecvWr::new(wr_id_of(queue, places[index]), &sges[index]));
        self.hand_over(queue, &wrs[..count], lanes)
    }

    fn hand_over(&mut self, queue: usize, wrs: &[RecvWr<'_>], lanes: &mut [Lane]) -> Result<(), RnicError> {
        match &mut self.shared {
            // SAFETY: the places outlive the queue pairs, and while messages may come this end looks at them only as
            // atomics or through work requests.
            Some((srq, _)) => unsafe { srq.post_recv(wrs)? },
            // SAFETY: as above.
            None => unsafe { end::qp(lanes, queue).post_recv(wrs)? },
        }
        Ok(())
    }

    /// The next place of a queue whose receives have places of their own.
    #[inline]
    fn take_place(&mut self, queue: usize) -> usize {
        let next = &mut self.queues[queue].next_place;
        let place = *next;
        *next = if place + 1 == self.depth { 0 } else { place + 1 };
        queue * self.depth as usize + place as usize
    }
}

fn wr_id_of(queue: usize, place: usize) -> u64 {
    IS_RECEIVE | (queue as u64) << 32 | place as u64
}

/// Where a receive put its message.
#[inline]
pub(super) fn place_of_receive(wc: &Wc) -> usize {
    (wc.wr_id & 0xffff_ffff) as usize
}

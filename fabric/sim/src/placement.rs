//! Placement of payload: in chunks, one after the other in time, in address order or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::memory::{Admitted, Memory};
use crate::params::Params;
use crate::queue::Event;
use crate::rng::Stream;
use crate::task::Scheduler;
use crate::timeline::Timeline;

/// A chunk of payload that is placed at its time, unless it is voided before.
pub(crate) struct PayloadChunk {
    to: Admitted,
    bytes: Vec<u8>,
    /// The placing queue pair and its incarnation: a queue pair that left its state places nothing more.
    qp: u32,
    incarnation: u64,
}

/// Length in bytes of a word, which is never torn.
const WORD: u64 = 8;

impl PayloadChunk {
    /// Returns the placing queue pair and its incarnation.
    pub(crate) fn placed_by(&self) -> (u32, u64) {
        (self.qp, self.incarnation)
    }

    /// Copies the chunk into its region, unless the region was deregistered.
    pub(crate) fn store(&self, memory: &Memory, scheduler: &mut Scheduler) {
        if memory.contains(self.to) {
            memory.store(scheduler, self.to, &self.bytes);
        }
    }
}

/// The payload that is not placed yet.
pub(crate) struct Placement {
    params: Arc<Params>,
    random: Stream,
    chunks: BTreeMap<u64, PayloadChunk>,
    next_chunk: u64,
}

impl Placement {
    /// Creates the state of a world without payload in flight.
    pub(crate) fn new(params: Arc<Params>, random: Stream) -> Self {
        Self { params, random, chunks: BTreeMap::new(), next_chunk: 0 }
    }

    /// Returns the random time from a READ's arrival until memory is read for it.
    pub(crate) fn read_pause_ns(&mut self) -> u64 {
        self.random.between(0, self.params.read_max_ns)
    }

    /// Schedules the placement of `bytes` at `to` from `from_ns` on, for a queue pair. Returns the time at which all
    /// are placed.
    pub(crate) fn place(
        &mut self,
        time: &mut Timeline,
        to: &[Admitted],
        bytes: &[u8],
        (qp, incarnation): (u32, u64),
        from_ns: u64,
    ) -> u64 {
        let mut chunks = Vec::new();
        let mut rest = bytes;
        for place in to {
            let (now, later) = rest.split_at((place.len as usize).min(rest.len()));
            self.cut(Admitted { len: now.len() as u64, ..*place }, now, &mut chunks);
            rest = later;
        }
        if !self.params.placement_in_order {
            self.random.shuffle(&mut chunks);
        }
        let mut at_ns = from_ns;
        for (to, bytes) in chunks {
            at_ns += self.random.between(0, self.params.piece_gap_ns);
            let number = self.next_chunk;
            self.next_chunk += 1;
            self.chunks.insert(number, PayloadChunk { to, bytes, qp, incarnation });
            time.at(at_ns, Event::Place { chunk: number });
        }
        at_ns
    }

    /// Cuts a range into chunks at random word boundaries.
    fn cut(&mut self, to: Admitted, bytes: &[u8], chunks: &mut Vec<(Admitted, Vec<u8>)>) {
        let (mut at, end) = (to.addr, to.addr + to.len);
        let mut left = self.random.between(1, self.params.pieces_max.max(1));
        while at < end {
            let border = at + self.random.between(1, end - at);
            let border = border.next_multiple_of(WORD).min(end);
            let border = if left <= 1 { end } else { border };
            let range = (at - to.addr) as usize..(border - to.addr) as usize;
            chunks.push((Admitted { addr: at, len: border - at, ..to }, bytes[range].to_vec()));
            at = border;
            left -= 1;
        }
    }

    /// Removes a chunk whose time has come.
    pub(crate) fn take(&mut self, number: u64) -> Option<PayloadChunk> {
        self.chunks.remove(&number)
    }

    /// Returns the numbers of the scheduled chunks of a region.
    pub(crate) fn chunks_in(&self, mr: u32) -> Vec<u64> {
        self.chunks.iter().filter(|(_, chunk)| chunk.to.mr == mr).map(|(number, _)| *number).collect()
    }
}

//! Placement of payload: in chunks, one after the other in time, in address order or not.

use crate::memory::Admitted;
use crate::queue::Event;
use crate::state::State;

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

impl State {
    /// Schedules the placement of `bytes` at `to` from `from_ns` on, for a queue pair. Returns the time at which all
    /// are placed.
    pub(crate) fn place(
        &mut self,
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
            self.placement_rng.shuffle(&mut chunks);
        }
        let mut at_ns = from_ns;
        for (to, bytes) in chunks {
            at_ns += self.placement_rng.between(0, self.params.piece_gap_ns);
            let number = self.next_chunk;
            self.next_chunk += 1;
            self.chunks.insert(number, PayloadChunk { to, bytes, qp, incarnation });
            self.at(at_ns, Event::Place { chunk: number });
        }
        at_ns
    }

    /// Cuts a range into chunks at random word boundaries.
    fn cut(&mut self, to: Admitted, bytes: &[u8], chunks: &mut Vec<(Admitted, Vec<u8>)>) {
        let (mut at, end) = (to.addr, to.addr + to.len);
        let mut left = self.placement_rng.between(1, self.params.pieces_max.max(1));
        while at < end {
            let border = at + self.placement_rng.between(1, end - at);
            let border = border.next_multiple_of(WORD).min(end);
            let border = if left <= 1 { end } else { border };
            let range = (at - to.addr) as usize..(border - to.addr) as usize;
            chunks.push((Admitted { addr: at, len: border - at, ..to }, bytes[range].to_vec()));
            at = border;
            left -= 1;
        }
    }

    /// Places a chunk.
    pub(crate) fn place_chunk(&mut self, number: u64) {
        let Some(chunk) = self.chunks.remove(&number) else { return };
        let is_current =
            self.qps.get(chunk.qp).is_some_and(|qp| qp.device.progress.incarnation == chunk.incarnation);
        if is_current && self.mrs.get(chunk.to.mr).is_some() {
            self.store(chunk.to, &chunk.bytes);
        }
    }

    /// Places all scheduled chunks of a region now.
    pub(crate) fn place_all_in(&mut self, mr: u32) {
        let numbers: Vec<u64> =
            self.chunks.iter().filter(|(_, chunk)| chunk.to.mr == mr).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.place_chunk(number));
    }
}

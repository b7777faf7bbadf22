//! The client's queue pair for datagrams.

use farcall_link::{Completed, Datagrams, Geometry, QueuePair, RegionId};
use farcall_verbs::{Error, Wc};

use crate::inbox::Inbox;
use crate::wire::{ResponseHeader, Seq, Slots};

/// The client's queue pair for datagrams, and the responses received by it.
pub(crate) struct DatagramResponses {
    pair: Datagrams,
    receives: Inbox,
    /// Indexed by response slot: responses that wait until their message is the oldest.
    waiting: Box<[Option<ReceivedResponse>]>,
}

/// A response that has been checked.
pub(crate) struct ReceivedResponse {
    pub receive: usize,
    pub header: ResponseHeader,
}

/// Length of a receive in bytes.
const fn receive_bytes(geometry: Geometry) -> usize {
    Datagrams::HEADER_BYTES + geometry.response_slot_bytes as usize
}

impl DatagramResponses {
    /// Number of receives: one for each message in flight, and as many for duplicates.
    pub const fn receives(geometry: Geometry) -> usize {
        2 * geometry.window as usize
    }

    /// Length of all receives in bytes.
    pub const fn bytes(geometry: Geometry) -> usize {
        Self::receives(geometry) * receive_bytes(geometry)
    }

    /// Posts the receives in a region of the queue pair, and enables reception of datagrams.
    ///
    /// # Errors
    /// Returns the queue pair's error if it rejects the receives.
    pub fn start(mut pair: Datagrams, region: RegionId, geometry: Geometry) -> Result<Self, Error> {
        let bytes = receive_bytes(geometry) as u32;
        let receives = Inbox::of_slots(&mut pair, region, bytes, Self::receives(geometry))?;
        pair.start()?;
        Ok(Self { pair, receives, waiting: (0..geometry.window).map(|_| None).collect() })
    }

    /// Returns the offset, in the region, of the datagram of a receive.
    pub const fn offset(&self, receive: usize) -> usize {
        self.receives.offset(receive) + Datagrams::HEADER_BYTES
    }

    /// Stores the response to message `seq`. Returns `false` if it is a duplicate.
    pub fn put(&mut self, slots: &Slots, seq: Seq, arrived: ReceivedResponse) -> bool {
        let place = &mut self.waiting[slots.index(seq)];
        if place.is_some() {
            return false;
        }
        *place = Some(arrived);
        true
    }

    pub fn repost(&mut self, receive: usize) {
        self.receives.post(&mut self.pair, receive);
    }

    /// Removes the response to message `seq`, if it has arrived.
    #[inline]
    pub fn take(&mut self, slots: &Slots, seq: Seq) -> Option<ReceivedResponse> {
        self.waiting[slots.index(seq)].take()
    }

    /// Handles a completion of the queue pair. Returns `None` for other queue pairs.
    pub fn complete(&mut self, wc: &Wc) -> Option<Completed> {
        (self.pair.qp_num() == wc.qp_num).then(|| self.pair.complete(wc))
    }

    /// Ends the queue pair: its outstanding receives are flushed.
    pub fn close(&mut self) {
        self.pair.close();
    }

    /// Returns the queue pair.
    pub fn into_pair(self) -> QueuePair {
        self.pair.into()
    }
}

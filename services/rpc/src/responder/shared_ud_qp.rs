//! The queue pair by which a server thread sends results as datagrams to all its clients, and receives their requests
//! that are datagrams.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    AddressId, Completed, Datagrams, LocalSlice, MemoryPolicy, Nic, QpSizes, Region, RegionId, Ticket,
};
use farcall_verbs::{Access, Error, RawCq, Wc};

use crate::inbox::Inbox;
use crate::wire::RequestHeader;

/// Maximum number of outstanding sends of all clients.
const SEND_DEPTH: u32 = 4_096;
/// Number of receives that all clients share. Each is posted again in the iteration that polls its completion. A
/// request that finds no receive is lost, and the client sends it again.
const RECEIVES: u32 = 1_024;

/// The queue pair is created for the first client that needs it.
#[derive(Default)]
pub struct SharedUdQp(Option<Open>);

struct Open {
    pair: Datagrams,
    /// `None` before the first client sends requests as datagrams.
    receives: Option<Receives>,
}

struct Receives {
    inbox: Inbox,
    memory: Arc<Region>,
}

/// Destination of a connection's results, and the region that holds them.
pub(crate) struct ReplyTo {
    pub results_id: RegionId,
    peer: AddressId,
    /// Ticket of the last send that reads the region.
    last: Ticket,
}

/// A received datagram.
pub(crate) struct Datagram<'a> {
    pub memory: &'a Region,
    /// Offset of the datagram in the memory.
    pub at: usize,
    /// Length of the datagram. The bytes after it are those of an earlier datagram.
    pub len_bytes: usize,
}

impl Datagram<'_> {
    /// Returns the session tag that the datagram contains.
    #[inline]
    pub fn session_tag(&self) -> u32 {
        self.memory.load_relaxed(self.at + RequestHeader::SESSION_AT) as u32
    }
}

impl SharedUdQp {
    /// Adds a client's queue pair, and the memory of its results.
    ///
    /// # Errors
    /// Returns an error if the queue pair cannot be created, or the client's cannot be reached.
    pub(crate) fn add(
        &mut self,
        nic: &Nic,
        cq: &dyn RawCq,
        memory: MemoryPolicy,
        client: &QpInfo,
        results: &Arc<Region>,
    ) -> Result<ReplyTo, Error> {
        let Open { pair, .. } = self.open(nic, cq, memory)?;
        let peer = pair.add_peer(nic, client)?;
        let results_id = pair.attach(Arc::clone(results));
        Ok(ReplyTo { results_id, peer, last: Ticket::NONE })
    }

    /// Starts receiving requests, unless it has already started. Returns the address of the queue pair.
    ///
    /// # Errors
    /// Returns an error if the queue pair or memory cannot be allocated.
    pub(crate) fn listen(
        &mut self,
        nic: &Nic,
        cq: &dyn RawCq,
        memory: MemoryPolicy,
    ) -> Result<QpInfo, Error> {
        let Open { pair, receives } = self.open(nic, cq, memory)?;
        if receives.is_none() {
            *receives = Some(Receives::post(pair, nic)?);
        }
        Ok(pair.info(nic))
    }

    fn open(&mut self, nic: &Nic, cq: &dyn RawCq, memory: MemoryPolicy) -> Result<&mut Open, Error> {
        match &mut self.0 {
            Some(open) => Ok(open),
            none => Ok(none.insert(Open::new(nic, cq, memory)?)),
        }
    }

    /// Removes a client.
    pub(crate) fn remove(&mut self, to: &ReplyTo) {
        if let Some(Open { pair, .. }) = &mut self.0 {
            pair.remove_peer(to.peer);
            pair.detach(to.results_id);
        }
    }

    /// Handles a completion of this queue pair. Returns `None` for other queue pairs.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<Completed> {
        let open = self.0.as_mut().filter(|open| open.pair.qp_num() == wc.qp_num)?;
        Some(open.pair.complete(wc))
    }

    /// Destroys the queue pair and abandons its outstanding requests.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Returns whether another result can be sent, whose slot was last read by the request of this ticket.
    #[inline]
    pub(crate) fn has_room_for(&self, ticket: Ticket) -> bool {
        self.0.as_ref().is_some_and(|Open { pair, .. }| pair.room() > 0 && pair.is_done(ticket))
    }

    /// Returns whether no outstanding send reads the memory of a connection's results.
    pub(crate) fn is_done(&self, to: &ReplyTo) -> bool {
        self.0.as_ref().is_none_or(|open| open.pair.is_done(to.last))
    }

    /// Sends a result. The send queue has room; an error means a queue pair in the error state, which its completions
    /// report.
    #[inline]
    pub(crate) fn send(&mut self, piece: LocalSlice, to: &mut ReplyTo) -> Option<Ticket> {
        let ticket = self.0.as_mut()?.pair.send(piece, to.peer).ok()?;
        to.last = to.last.max(ticket);
        Some(ticket)
    }

    /// Returns the datagram in a receive, of which `filled_bytes` bytes were reported as received.
    #[inline]
    pub(crate) fn datagram(&self, receive: usize, filled_bytes: u32) -> Option<Datagram<'_>> {
        let Receives { inbox, memory } = self.0.as_ref()?.receives.as_ref()?;
        let len_bytes = (filled_bytes as usize).saturating_sub(Datagrams::HEADER_BYTES);
        Some(Datagram { memory, at: inbox.offset(receive) + Datagrams::HEADER_BYTES, len_bytes })
    }

    /// Posts a receive again.
    #[inline]
    pub(crate) fn repost(&mut self, receive: usize) {
        if let Some(Open { pair, receives: Some(receives) }) = &mut self.0 {
            receives.inbox.post(pair, receive);
        }
    }
}

impl Open {
    fn new(nic: &Nic, cq: &dyn RawCq, memory: MemoryPolicy) -> Result<Self, Error> {
        let config = QpSizes {
            send_depth: SEND_DEPTH.min(nic.attr().max_qp_wr),
            recv_depth: RECEIVES.min(nic.attr().max_qp_wr),
            sges_max: 1,
            signal_every: memory.signal_every.max(1),
            inline_max_bytes: memory.inline_max_bytes,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(nic, cq, config, None)?;
        pair.start()?;
        Ok(Self { pair, receives: None })
    }
}

impl Receives {
    /// Posts the receives, each for a datagram of maximum length.
    fn post(pair: &mut Datagrams, nic: &Nic) -> Result<Self, Error> {
        let count = RECEIVES.min(nic.attr().max_qp_wr) as usize;
        let bytes = Datagrams::HEADER_BYTES + nic.mtu().bytes() as usize;
        let memory = Arc::new(Region::alloc(&**nic.pd(), count * bytes, Access::LOCAL_WRITE)?);
        let id = pair.attach(Arc::clone(&memory));
        let inbox = Inbox::of_slots(pair, id, bytes as u32, count)?;
        Ok(Self { inbox, memory })
    }
}

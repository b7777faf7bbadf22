//! The one queue pair by which a server thread sends results as datagrams, and takes requests that are datagrams: of
//! all its clients.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    AddressId, Completed, Datagrams, MemoryPolicy, Nic, PairConfig, Piece, Region, RegionId, Ticket,
};
use farcall_verbs::{Access, Error, RawCq, Wc};

use crate::inbox::Inbox;

/// Sends outstanding, of all clients.
const SEND_DEPTH: u32 = 4_096;
/// Receives that all clients share. Each is posted again with the turn that finds it completed; a request that finds
/// none is lost, and sent again.
const RECEIVES: u32 = 1_024;

/// There is none before the first client wants it.
#[derive(Default)]
pub struct ThreadPair(Option<Open>);

struct Open {
    pair: Datagrams,
    /// None before the first client sends requests as datagrams.
    receives: Option<Receives>,
}

struct Receives {
    inbox: Inbox,
    memory: Arc<Region>,
}

/// Where a connection's results go, and which memory they are in.
pub(crate) struct ReplyTo {
    pub results_id: RegionId,
    peer: AddressId,
    /// Of the last send that reads the memory.
    last: Ticket,
}

/// What has landed in a receive.
pub(crate) struct Datagram<'a> {
    pub memory: &'a Region,
    /// Where, in the memory, it begins.
    pub at: usize,
    /// How much came; behind that is what an earlier one left.
    pub len_bytes: usize,
}

impl ThreadPair {
    /// Adds a client's queue pair, and the memory of his results.
    ///
    /// # Errors
    /// If a queue pair cannot be had, or the client's be reached.
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

    /// Takes requests from now on, if it has not done so before. Where they are to be sent.
    ///
    /// # Errors
    /// If a queue pair or memory cannot be had.
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

    /// Takes a client away.
    pub(crate) fn remove(&mut self, to: &ReplyTo) {
        if let Some(Open { pair, .. }) = &mut self.0 {
            pair.remove_peer(to.peer);
            pair.detach(to.results_id);
        }
    }

    /// Whether a send or receive of it was completed, and if it failed.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<Completed> {
        let open = self.0.as_mut().filter(|open| open.pair.qp_num() == wc.qp_num)?;
        Some(open.pair.complete(wc))
    }

    /// Gives the queue pair up, and with it what is under way.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Whether one more result can be sent whose slot was last read by the request of this ticket.
    #[inline]
    pub(crate) fn has_room_for(&self, ticket: Ticket) -> bool {
        self.0.as_ref().is_some_and(|Open { pair, .. }| pair.room() > 0 && pair.is_done(ticket))
    }

    /// Whether the memory of a connection's results is not read any more.
    pub(crate) fn is_done(&self, to: &ReplyTo) -> bool {
        self.0.as_ref().is_none_or(|open| open.pair.is_done(to.last))
    }

    /// Sends a result. There was room; what fails all the same is a queue pair in error, which its completions report.
    #[inline]
    pub(crate) fn send(&mut self, piece: Piece, to: &mut ReplyTo) -> Option<Ticket> {
        let ticket = self.0.as_mut()?.pair.send(piece, to.peer).ok()?;
        to.last = to.last.max(ticket);
        Some(ticket)
    }

    /// What has landed in a receive, of which so many bytes are said to be filled.
    #[inline]
    pub(crate) fn datagram(&self, receive: usize, filled_bytes: u32) -> Option<Datagram<'_>> {
        let Receives { inbox, memory } = self.0.as_ref()?.receives.as_ref()?;
        let len_bytes = (filled_bytes as usize).saturating_sub(Datagrams::HEADER_BYTES);
        Some(Datagram { memory, at: inbox.offset(receive) + Datagrams::HEADER_BYTES, len_bytes })
    }

    /// Posts a receive again.
    #[inline]
    pub(crate) fn give_back(&mut self, receive: usize) {
        if let Some(Open { pair, receives: Some(receives) }) = &mut self.0 {
            receives.inbox.post(pair, receive);
        }
    }
}

impl Open {
    fn new(nic: &Nic, cq: &dyn RawCq, memory: MemoryPolicy) -> Result<Self, Error> {
        let config = PairConfig {
            send_depth: SEND_DEPTH.min(nic.attr.max_qp_wr),
            recv_depth: RECEIVES.min(nic.attr.max_qp_wr),
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
    /// Each for the longest datagram.
    fn post(pair: &mut Datagrams, nic: &Nic) -> Result<Self, Error> {
        let count = RECEIVES.min(nic.attr.max_qp_wr) as usize;
        let bytes = Datagrams::HEADER_BYTES + nic.mtu().bytes() as usize;
        let memory = Arc::new(Region::alloc(&*nic.pd, count * bytes, Access::LOCAL_WRITE)?);
        let id = pair.attach(Arc::clone(&memory));
        let inbox = Inbox::of_slots(pair, id, bytes as u32, count)?;
        Ok(Self { inbox, memory })
    }
}

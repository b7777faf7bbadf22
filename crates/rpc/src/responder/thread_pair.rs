//! The one queue pair from which a server thread sends results as datagrams, to all its clients.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    AddressId, Completed, Datagrams, MemoryPolicy, Nic, PairConfig, Piece, Region, RegionId, Ticket,
};
use farcall_verbs::{Access, Error, RawCq, Wc};

/// Sends outstanding, of all clients.
const SEND_DEPTH: u32 = 4_096;

/// There is none before the first client wants it.
#[derive(Default)]
pub struct Outbox(Option<Datagrams>);

/// Where a connection's results go, and which memory they are in.
pub(crate) struct ReplyTo {
    pub results_id: RegionId,
    peer: AddressId,
    /// Of the last send that reads the memory.
    last: Ticket,
}

impl Outbox {
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
        let pair = match &mut self.0 {
            Some(pair) => pair,
            none => none.insert(Self::open(nic, cq, memory)?),
        };
        let peer = pair.add_peer(nic, client)?;
        let results_id = pair.attach(Arc::clone(results));
        Ok(ReplyTo { results_id, peer, last: Ticket::NONE })
    }

    fn open(nic: &Nic, cq: &dyn RawCq, memory: MemoryPolicy) -> Result<Datagrams, Error> {
        let config = PairConfig {
            send_depth: SEND_DEPTH.min(nic.attr.max_qp_wr),
            recv_depth: 0,
            sges_max: 1,
            signal_every: memory.signal_every.max(1),
            inline_max_bytes: memory.inline_max_bytes,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(nic, cq, config, None)?;
        pair.start()?;
        Ok(pair)
    }

    /// Takes a client away.
    pub(crate) fn remove(&mut self, to: &ReplyTo) {
        if let Some(pair) = &mut self.0 {
            pair.remove_peer(to.peer);
            pair.detach(to.results_id);
        }
    }

    /// Whether a send was completed, and if it failed.
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<Completed> {
        let pair = self.0.as_mut().filter(|pair| pair.qp_num() == wc.qp_num)?;
        Some(pair.complete(wc))
    }

    /// Gives the queue pair up, and with it what is under way.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Whether one more result can be sent whose slot was last read by the request of this ticket.
    #[inline]
    pub(crate) fn has_room_for(&self, ticket: Ticket) -> bool {
        self.0.as_ref().is_some_and(|pair| pair.room() > 0 && pair.is_done(ticket))
    }

    /// Whether the memory of a connection's results is not read any more.
    pub(crate) fn is_done(&self, to: &ReplyTo) -> bool {
        self.0.as_ref().is_none_or(|pair| pair.is_done(to.last))
    }

    /// Sends a result. There was room; what fails all the same is a queue pair in error, which its completions report.
    #[inline]
    pub(crate) fn send(&mut self, piece: Piece, to: &mut ReplyTo) -> Option<Ticket> {
        let ticket = self.0.as_mut()?.send(piece, to.peer).ok()?;
        to.last = to.last.max(ticket);
        Some(ticket)
    }
}

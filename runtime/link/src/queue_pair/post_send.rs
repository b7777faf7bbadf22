//! What a queue pair is to send: its work requests, alone, chained or lent.

use std::sync::Arc;

use farcall_verbs::{AtomicTarget, PostError, SendFlags, SendWr, Sge, UdTarget, WrOpcode};

use super::QueuePair;
use crate::retired::Named;
use crate::work_request::{SGES_MAX, send_wr_id};
use crate::{AddressId, Chain, Operation, Piece, PostRefused, Region, Remote, Ticket, WorkRequest};

/// Requests that [`QueuePair::post_together`] takes.
pub const TOGETHER_MAX: usize = 16;

impl QueuePair {
    /// How many sends can be posted now.
    #[inline]
    pub const fn room(&self) -> u32 {
        // One place is kept for the mark that ends draining.
        (self.config.send_depth as u64 - 1).saturating_sub(self.posted - self.reaped) as u32
    }

    /// How many sends are not known to be complete.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        (self.posted - self.reaped) as u32
    }

    /// Whether a request, and so all before it, is known to be complete.
    #[inline]
    pub const fn is_done(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.reaped
    }

    /// Bytes of the longest request that goes inline.
    #[inline]
    pub const fn inline_max_bytes(&self) -> u32 {
        self.config.inline_max_bytes
    }

    #[inline]
    const fn is_inline(&self, len_bytes: u64) -> bool {
        len_bytes <= self.config.inline_max_bytes as u64
    }

    /// Posts one request. Its completion, if it has one, carries `tag` (of 23 bits).
    ///
    /// # Errors
    /// If the queue is full, the target outside of the grant, or the pair refuses.
    ///
    /// # Panics
    /// If it has more than 8 pieces, names what is not attached, or is of another transport.
    #[inline]
    pub fn post(&mut self, request: &WorkRequest<'_>, tag: u32) -> Result<Ticket, PostRefused> {
        let mut sges = [Sge::default(); SGES_MAX];
        for (sge, piece) in sges.iter_mut().zip(request.local) {
            *sge = self.regions.sge(*piece);
        }
        let wr = self.prepare(request, &sges[..request.local.len()])?;
        self.post_one(wr, tag)
    }

    /// Prepares requests to be posted together.
    ///
    /// # Errors
    /// If a target is outside of its grant.
    ///
    /// # Panics
    /// As [`QueuePair::post`].
    pub fn chain(&self, requests: &[WorkRequest<'_>]) -> Result<Chain, PostRefused> {
        Chain::new(requests, &self.regions, self.serial, |request, sges| self.prepare(request, sges))
    }

    /// Posts prepared requests behind one doorbell. The completions of signalled ones carry `tag` (of 23 bits). The
    /// ticket is the last one's.
    ///
    /// # Errors
    /// If there is no room for all, another pair prepared them over other regions, or the pair refuses.
    #[inline(always)]
    pub fn post_chain(&mut self, chain: &mut Chain, tag: u32) -> Result<Ticket, PostRefused> {
        if (self.room() as usize) < chain.wrs.len() {
            return Err(self.full());
        }
        if !self.regions.hold(&chain.regions) || chain.addresses_of != self.serial {
            return Err(PostRefused::NotAttached { qp_num: self.qp_num() });
        }
        for at in &chain.signalled {
            chain.wrs[*at as usize].wr_id = send_wr_id(tag, self.posted + u64::from(*at) + 1);
        }
        // SAFETY: the elements name pieces of attached regions (bounds checked when the chain was made), which this
        // pair keeps mapped until these requests have ended or it is destroyed. Contents that change too early would
        // garble a message but no memory of ours; owners prevent that by `is_done`. Destinations of datagrams are kept,
        // too.
        let posted = unsafe { self.qp.post_send(&chain.wrs) };
        self.posted_many(posted, chain.wrs.len())
    }

    /// Posts up to [`TOGETHER_MAX`] requests behind one doorbell. The completion of each carries the tag (of 23 bits)
    /// beside it. The ticket is the last one's.
    ///
    /// # Errors
    /// If there is no room for all, a target is outside of its grant, or the pair refuses.
    ///
    /// # Panics
    /// As [`QueuePair::post`], and if they are too many.
    pub fn post_together(&mut self, requests: &[(WorkRequest<'_>, u32)]) -> Result<Ticket, PostRefused> {
        if let [(request, tag)] = requests {
            return self.post(request, *tag);
        }
        if (self.room() as usize) < requests.len() {
            return Err(self.full());
        }
        let mut sges = [[Sge::default(); SGES_MAX]; TOGETHER_MAX];
        let mut wrs = [SendWr::send(0, &[]); TOGETHER_MAX];
        let wrs = &mut wrs[..requests.len()];
        for (sges, (request, _)) in sges.iter_mut().zip(requests) {
            for (sge, piece) in sges.iter_mut().zip(request.local) {
                *sge = self.regions.sge(*piece);
            }
        }
        for (at, (wr, (request, tag))) in (1..).zip(wrs.iter_mut().zip(requests)) {
            *wr = self.prepare(request, &sges[at as usize - 1][..request.local.len()])?;
            wr.wr_id = send_wr_id(*tag, self.posted + at);
        }
        // SAFETY: as in `post_chain`; bounds are checked by `sge`.
        let posted = unsafe { self.qp.post_send(wrs) };
        self.posted_many(posted, requests.len())
    }

    /// Posts one request over all of a region that is not attached. It is signalled; the pair keeps the region until
    /// exactly this request has ended, and not at all if it is refused.
    ///
    /// # Errors
    /// As [`QueuePair::post`].
    pub fn post_lending(
        &mut self,
        region: Arc<Region>,
        operation: Operation<'_>,
        tag: u32,
    ) -> Result<Ticket, PostRefused> {
        let sges = [region.sge(0, region.len_bytes())];
        let request = WorkRequest { operation, local: &[], imm: None, is_signalled: true };
        let ticket = self.post_one(self.prepare(&request, &sges)?, tag)?;
        self.retire(0, Named::Region { _kept: region });
        Ok(ticket)
    }

    #[inline(always)]
    fn posted_many(&mut self, posted: Result<(), PostError>, count: usize) -> Result<Ticket, PostRefused> {
        if let Err(source) = posted {
            self.posted += source.posted as u64;
            return Err(PostRefused::Post { qp_num: self.qp_num(), source });
        }
        self.posted += count as u64;
        Ok(Ticket(self.posted))
    }

    #[inline]
    pub(crate) fn post_seldom_signalled(&mut self, mut wr: SendWr<'_>) -> Result<Ticket, PostRefused> {
        let inline = self.is_inline(wr.len_bytes());
        // Whoever waits for a ticket must not depend on how much is posted after it.
        let signal = !inline || self.unsignalled + 1 >= self.config.signal_every;
        wr.send_flags.set(SendFlags::INLINE, inline);
        wr.send_flags.set(SendFlags::SIGNALED, signal);
        let ticket = self.post_one(wr, 0)?;
        self.unsignalled = if signal { 0 } else { self.unsignalled + 1 };
        Ok(if inline { Ticket::NONE } else { ticket })
    }

    #[inline]
    pub(crate) fn send_to(&mut self, from: Piece, to: AddressId) -> Result<Ticket, PostRefused> {
        let sges = [self.regions.sge(from)];
        let wr = SendWr::send_to(0, &sges, self.address(to.0));
        self.post_seldom_signalled(wr.with_flags(SendFlags::SOLICITED))
    }

    #[inline]
    pub(crate) fn post_one(&mut self, mut wr: SendWr<'_>, tag: u32) -> Result<Ticket, PostRefused> {
        if self.room() == 0 && !self.marked {
            return Err(self.full());
        }
        wr.wr_id = send_wr_id(tag, self.posted + 1);
        // SAFETY: as in `post_chain`; bounds are checked by `sge`. Inline bytes that are no piece of a region are
        // borrowed by the caller's caller until this returns, and read no later.
        let posted = unsafe { self.qp.post_send(&[wr]) };
        self.posted_many(posted, 1)
    }

    #[cold]
    fn full(&self) -> PostRefused {
        PostRefused::Full { qp_num: self.qp_num(), depth: self.config.send_depth }
    }

    #[inline]
    fn prepare<'a>(&self, request: &WorkRequest<'_>, sges: &'a [Sge]) -> Result<SendWr<'a>, PostRefused> {
        // What is no datagram names no destination, which a device may look for all the same.
        let is_datagram = matches!(request.operation, Operation::SendTo(_));
        assert_eq!(is_datagram, self.serial != 0, "{:?} over another transport", request.operation);
        let len_bytes = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let atomic = |opcode, at: Remote<'_>, compare_add, swap| {
            let (remote_addr, rkey) = (self.target(at, 8)?, at.grant.rkey);
            Ok(SendWr::atomic(opcode, 0, sges, AtomicTarget { remote_addr, compare_add, swap, rkey }))
        };
        let mut wr = match request.operation {
            Operation::Send => SendWr::send(0, sges),
            Operation::SendTo(address) => SendWr::send_to(0, sges, self.address(address.0)),
            Operation::Write(to) => SendWr::write(0, sges, self.target(to, len_bytes)?, to.grant.rkey),
            Operation::Read(from) => SendWr::read(0, sges, self.target(from, len_bytes)?, from.grant.rkey),
            Operation::CompareSwap { at, compare, swap } => {
                atomic(WrOpcode::ATOMIC_CMP_AND_SWP, at, compare, swap)?
            }
            Operation::FetchAdd { at, add } => atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, at, add, 0)?,
        };
        if let Some(imm) = request.imm {
            wr = wr.with_imm(imm);
        }
        wr.send_flags.set(SendFlags::SIGNALED, request.is_signalled);
        wr.send_flags.set(SendFlags::INLINE, !wr.opcode.returns_data() && self.is_inline(len_bytes));
        // A sleeper that asked for solicited events only is woken, too.
        wr.send_flags.set(SendFlags::SOLICITED, wr.opcode.consumes_receive());
        Ok(wr)
    }

    /// # Panics
    /// If there is no such destination: our own error.
    #[inline]
    pub(crate) fn address(&self, index: usize) -> UdTarget {
        self.addresses[index].as_ref().expect("a destination that was added").target()
    }

    #[inline]
    pub(crate) fn target(&self, to: Remote<'_>, len_bytes: u64) -> Result<u64, PostRefused> {
        if to.grant.holds(to.offset as u64, len_bytes) {
            return Ok(to.grant.addr.wrapping_add(to.offset as u64));
        }
        Err(PostRefused::OutsideOfGrant {
            qp_num: self.qp_num(),
            offset: to.offset as u64,
            len_bytes,
            granted_bytes: to.grant.len_bytes,
        })
    }
}

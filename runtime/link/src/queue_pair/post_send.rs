//! Sends of a queue pair: single requests, chains, and requests that own their region.

use std::sync::Arc;

use farcall_verbs::{AtomicTarget, PostError, SendFlags, SendWr, Sge, UdTarget, WrOpcode};

use super::QueuePair;
use crate::deferred_release::ReferencedObject;
use crate::work_request::{SGES_MAX, send_wr_id};
use crate::{AddressId, Chain, LocalSlice, Operation, PostRefused, Region, Remote, Ticket, WorkRequest};

/// Maximum number of requests in one call of [`QueuePair::post_together`].
pub const TOGETHER_MAX: usize = 16;

impl QueuePair {
    /// Returns the number of sends that can be posted now.
    #[inline]
    pub const fn room(&self) -> u32 {
        // One slot is reserved for the marker request that ends draining.
        (self.config.send_depth as u64 - 1).saturating_sub(self.posted - self.reaped) as u32
    }

    /// Returns the number of sends that are not known to have completed.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        (self.posted - self.reaped) as u32
    }

    /// Returns whether a request, and so all before it, is known to have completed.
    #[inline]
    pub const fn is_done(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.reaped
    }

    /// Returns the maximum length of an inline request in bytes.
    #[inline]
    pub const fn inline_max_bytes(&self) -> u32 {
        self.config.inline_max_bytes
    }

    #[inline]
    const fn is_inline(&self, len_bytes: u64) -> bool {
        len_bytes <= self.config.inline_max_bytes as u64
    }

    /// Posts one request. Its completion, if it has one, carries `tag` (23 bits).
    ///
    /// # Errors
    /// If the queue is full, the target is outside the grant, or the provider refuses.
    ///
    /// # Panics
    /// If it has more than 8 SGEs, names a region that is not attached, or is for another transport.
    #[inline]
    pub fn post(&mut self, request: &WorkRequest<'_>, tag: u32) -> Result<Ticket, PostRefused> {
        let mut sges = [Sge::default(); SGES_MAX];
        for (sge, piece) in sges.iter_mut().zip(request.local) {
            *sge = self.regions.sge(*piece);
        }
        let wr = self.prepare(request, &sges[..request.local.len()])?;
        self.post_one(wr, tag)
    }

    /// Prepares requests that are posted together.
    ///
    /// # Errors
    /// If a target is outside its grant.
    ///
    /// # Panics
    /// Like [`QueuePair::post`].
    pub fn chain(&self, requests: &[WorkRequest<'_>]) -> Result<Chain, PostRefused> {
        Chain::new(requests, &self.regions, self.serial, |request, sges| self.prepare(request, sges))
    }

    /// Posts prepared requests with one doorbell. The completions of signalled requests carry `tag` (23 bits). Returns
    /// the ticket of the last request.
    ///
    /// # Errors
    /// If the queue has no room for all, if they were prepared for other regions or destinations, or if the provider
    /// refuses.
    #[inline(always)]
    pub fn post_chain(&mut self, chain: &mut Chain, tag: u32) -> Result<Ticket, PostRefused> {
        if (self.room() as usize) < chain.wrs.len() {
            return Err(self.full());
        }
        if !self.regions.are_attached(&chain.regions) || chain.addresses_of != self.serial {
            return Err(PostRefused::NotAttached { qp_num: self.qp_num() });
        }
        for at in &chain.signalled {
            chain.wrs[*at as usize].wr_id = send_wr_id(tag, self.posted + u64::from(*at) + 1);
        }
        // SAFETY: `RawQp::post_send` requires valid memory until the requests complete. The elements name attached
        // regions (bounds checked when the chain was prepared; `Regions::are_attached` checked that they are still
        // attached); `regions` and `deferred` keep them registered until then or until the queue pair is destroyed.
        // `addresses` and `deferred` keep the address handles. A buffer that changes too early garbles the message but
        // no other memory; callers avoid this by `is_done`.
        let posted = unsafe { self.qp.post_send(&chain.wrs) };
        self.record_posted(posted, chain.wrs.len())
    }

    /// Posts up to [`TOGETHER_MAX`] requests with one doorbell. The completion of each carries its tag (23 bits).
    /// Returns the ticket of the last request.
    ///
    /// # Errors
    /// If the queue has no room for all, a target is outside its grant, or the provider refuses.
    ///
    /// # Panics
    /// Like [`QueuePair::post`], and if there are more than [`TOGETHER_MAX`] requests.
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
        // SAFETY: `RawQp::post_send` requires valid memory until the requests complete. The elements come from
        // `Regions::sge`, which checked their bounds; `regions`, `addresses` and `deferred` keep the regions and
        // address handles until then or until the queue pair is destroyed.
        let posted = unsafe { self.qp.post_send(wrs) };
        self.record_posted(posted, requests.len())
    }

    /// Posts one signalled request over the complete `region`, which is not attached. The queue pair keeps the region
    /// until this request has completed, and not at all if posting fails.
    ///
    /// # Errors
    /// Like [`QueuePair::post`].
    pub fn post_lending(
        &mut self,
        region: Arc<Region>,
        operation: Operation<'_>,
        tag: u32,
    ) -> Result<Ticket, PostRefused> {
        let sges = [region.sge(0, region.len_bytes())];
        let request = WorkRequest { operation, local: &[], imm: None, is_signalled: true };
        let ticket = self.post_one(self.prepare(&request, &sges)?, tag)?;
        self.defer_release(0, ReferencedObject::Region { _region: region });
        Ok(ticket)
    }

    #[inline(always)]
    fn record_posted(&mut self, posted: Result<(), PostError>, count: usize) -> Result<Ticket, PostRefused> {
        if let Err(source) = posted {
            self.posted += source.posted as u64;
            return Err(PostRefused::Post { qp_num: self.qp_num(), source });
        }
        self.posted += count as u64;
        Ok(Ticket(self.posted))
    }

    #[inline]
    pub(crate) fn post_rarely_signalled(&mut self, mut wr: SendWr<'_>) -> Result<Ticket, PostRefused> {
        let inline = self.is_inline(wr.len_bytes());
        // A thread that waits for a ticket must not depend on later requests, so requests with a ticket are always
        // signalled.
        let signal = !inline || self.unsignalled + 1 >= self.config.signal_every;
        wr.send_flags.set(SendFlags::INLINE, inline);
        wr.send_flags.set(SendFlags::SIGNALED, signal);
        let ticket = self.post_one(wr, 0)?;
        self.unsignalled = if signal { 0 } else { self.unsignalled + 1 };
        Ok(if inline { Ticket::NONE } else { ticket })
    }

    #[inline]
    pub(crate) fn send_to(&mut self, from: LocalSlice, to: AddressId) -> Result<Ticket, PostRefused> {
        let sges = [self.regions.sge(from)];
        let wr = SendWr::send_to(0, &sges, self.address(to.0));
        self.post_rarely_signalled(wr.with_flags(SendFlags::SOLICITED))
    }

    #[inline]
    pub(crate) fn post_one(&mut self, mut wr: SendWr<'_>, tag: u32) -> Result<Ticket, PostRefused> {
        if self.room() == 0 && !self.marked {
            return Err(self.full());
        }
        wr.wr_id = send_wr_id(tag, self.posted + 1);
        // SAFETY: `RawQp::post_send` requires valid memory until the request completes. Elements from `Regions::sge`
        // are inside regions that `regions` and `deferred` keep until then, or until the queue pair is destroyed. The
        // exceptions are inline elements (`Connection::write_bytes`), borrowed until this call returns and copied by
        // it, and the region of `post_lending`, which holds the region during this call and passes it to
        // `defer_release` afterwards.
        let posted = unsafe { self.qp.post_send(&[wr]) };
        self.record_posted(posted, 1)
    }

    #[cold]
    fn full(&self) -> PostRefused {
        PostRefused::Full { qp_num: self.qp_num(), depth: self.config.send_depth }
    }

    #[inline]
    fn prepare<'a>(&self, request: &WorkRequest<'_>, sges: &'a [Sge]) -> Result<SendWr<'a>, PostRefused> {
        // A request other than a datagram names no destination, which the device of a UD queue pair may read all the
        // same.
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
        // Solicited, so that a receiver that is armed for solicited events only is woken as well.
        wr.send_flags.set(SendFlags::SOLICITED, wr.opcode.consumes_receive());
        Ok(wr)
    }

    /// # Panics
    /// If the destination does not exist, which is an error of this program.
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

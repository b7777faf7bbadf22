//! A queue pair, the regions that its work requests name, and the accounts of what is posted.
//!
//! This is what makes posting safe. A [`QueuePair`] keeps every region that its work requests name alive until the
//! requests are known to have ended, addresses memory as (region, offset) with bounds checked, and counts what is
//! posted and what is known to be complete, so that owners ask [`QueuePair::is_done`] before they overwrite a source or
//! reuse a destination. [`crate::Connection`] and [`crate::Datagrams`] say how it meets its peer.

mod ending;

use std::ops::Range;
use std::sync::Arc;

use farcall_verbs::{
    Access, AtomicTarget, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawQp, RecvWr,
    SendFlags, SendWr, Sge, UdTarget, Wc, WcStatus, WrOpcode,
};

use crate::bootstrap::QpInfo;
use crate::region::next_serial;
use crate::retired::{Address, Named, Requests, Retired};
use crate::shared_receives::{SharedReceives, SharedRegions};
use crate::work_request::{
    Attached, Regions, SGES_MAX, TICKET_MASK, is_receive, put, receive_tag, receive_wr_id, send_tag,
    send_wr_id,
};
use crate::{
    AddressId, Chain, Nic, Operation, Piece, PostRefused, Receive, ReceiveChain, Region, RegionId, Remote,
    Ticket, WorkRequest,
};

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairState {
    /// It is made, not connected.
    Fresh,
    /// Ready to send.
    Connected,
    /// A work request failed, or the owner closes: in error, not everything is known to have ended.
    Draining,
    /// Nothing of ours is under way any more.
    Drained,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// Sends outstanding.
    pub send_depth: u32,
    /// Receives posted; of no use with shared receives.
    pub recv_depth: u32,
    /// Pieces of one work request, at most 8.
    pub sges_max: u32,
    /// Of the single inline WRITEs ([`crate::Connection::write`]) one in so many is signalled; others always, since
    /// their buffers wait for the completion.
    pub signal_every: u16,
    /// Sends up to this many bytes are inline (no more than the device can).
    pub inline_max_bytes: u32,
    /// What the peer may do; nothing over datagrams.
    pub access: Access,
}

/// A completion of one of this pair's work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A send ended well; everything posted up to it is done.
    Send {
        /// What the poster gave.
        tag: u32,
        /// Which request.
        ticket: Ticket,
    },
    /// A message consumed a receive.
    Received {
        /// What the receive was posted with.
        tag: u64,
        /// Its length; of datagrams with 40 bytes of header.
        len_bytes: u32,
        /// The immediate data, if it has any.
        imm: Option<u32>,
    },
    /// A request failed: the pair is in error and drains.
    Failed(WcStatus),
    /// A request was flushed while draining.
    Flushed,
}

/// A queue pair with its regions and accounts. The fields are dropped in order: the pair before what its requests name.
pub struct QueuePair {
    qp: Box<dyn RawQp>,
    pub(crate) regions: Regions,
    _shared: Option<SharedRegions>,
    addresses: Vec<Option<Address>>,
    retired: Retired,
    /// Of datagrams, so that nobody posts what was prepared for other destinations; 0 of a connection.
    serial: u64,
    config: PairConfig,
    psn: u32,
    state: PairState,
    posted: u64,
    reaped: u64,
    unsignalled: u16,
    marked: bool,
    /// Receives with memory.
    receives: Receives,
    failure: Option<WcStatus>,
}

/// Receives are complete in order, so numbers are enough.
#[derive(Default)]
struct Receives {
    posted: u64,
    completed: u64,
    with_memory: bool,
}

pub(crate) const PSN_MASK: u32 = 0x00ff_ffff;
/// What datagrams carry to be accepted.
pub(crate) const QKEY: u32 = 0x0fa2_ca11;
/// Requests that [`QueuePair::post_together`] takes.
pub const TOGETHER_MAX: usize = 16;
/// Receives posted at once.
const RECEIVES_AT_ONCE: usize = 16;

impl QueuePair {
    /// Makes a pair in INIT. Each transport takes its own attributes (IBA table 91); real devices refuse any other.
    pub(crate) fn new(
        nic: &Nic,
        qp_type: QpType,
        cq: &dyn RawCq,
        config: PairConfig,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        let inline_max_bytes = config.inline_max_bytes.min(nic.attr.max_inline_data);
        let sges_max = config.sges_max.clamp(1, SGES_MAX as u32);
        let config = PairConfig { inline_max_bytes, sges_max, ..config };
        let cap = QpCap {
            max_send_wr: config.send_depth,
            max_recv_wr: if shared.is_some() { 0 } else { config.recv_depth.max(1) },
            max_send_sge: sges_max,
            max_recv_sge: sges_max,
            max_inline_data: inline_max_bytes,
        };
        let srq = shared.map(SharedReceives::raw);
        let attr = QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: false };
        let mut qp = nic.pd.create_qp(&attr)?;
        qp.modify(&match qp_type {
            QpType::Ud => QpAttr { port_num: Some(nic.port.port_num), ..QpAttr::init_datagrams(QKEY) },
            QpType::Uc => nic.port.init(config.access & (Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
            _ => nic.port.init(config.access),
        })?;
        let psn = nic.entropy.bytes::<4>().map_err(|e| Error::os("create QP", "random numbers", e))?;
        Ok(Self {
            qp,
            regions: Regions::default(),
            _shared: shared.map(SharedReceives::regions),
            addresses: Vec::new(),
            retired: Retired::default(),
            serial: if qp_type == QpType::Ud { next_serial() } else { 0 },
            config,
            psn: u32::from_le_bytes(psn) & PSN_MASK,
            state: PairState::Fresh,
            posted: 0,
            reaped: 0,
            unsignalled: 0,
            marked: false,
            receives: Receives::default(),
            failure: None,
        })
    }

    /// What the peer needs to connect or to send datagrams.
    pub fn info(&self, nic: &Nic) -> QpInfo {
        let mtu = if self.qp.qp_type() == QpType::Ud { nic.mtu() } else { nic.path_mtu() };
        QpInfo {
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            gid: nic.gid().0,
            lid: nic.port.attr.lid,
            mtu_log2: 7 + mtu as u8,
        }
    }

    pub(crate) fn modify(&mut self, attrs: [QpAttr; 2]) -> Result<(), Error> {
        attrs.iter().try_for_each(|attr| self.qp.modify(attr))?;
        self.state = PairState::Connected;
        Ok(())
    }

    pub(crate) fn psn(&self) -> u32 {
        self.psn
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.qp.qp_type()
    }

    pub(crate) fn start_datagrams(&mut self) -> Result<(), Error> {
        let rts = QpAttr::rts_unreliable(self.psn);
        self.modify([QpAttr::to(QpState::Rtr), rts])
    }

    pub(crate) fn add_peer(&mut self, nic: &Nic, peer: &QpInfo) -> Result<AddressId, Error> {
        if peer.qp_num > PSN_MASK {
            return Err(Error::invalid("add peer", "a queue pair number of more than 24 bits"));
        }
        let handle = nic.pd.create_ah(&nic.path_to(peer.gid(), peer.lid))?;
        Ok(AddressId(put(&mut self.addresses, Address(handle, peer.qp_num))))
    }

    /// What was prepared for destinations must be prepared again.
    pub(crate) fn remove_address(&mut self, at: usize) {
        if let Some(address) = self.addresses.get_mut(at).and_then(Option::take) {
            self.retire(0, Named::Address(address));
            self.serial = next_serial();
        }
    }

    /// The queue pair's number.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// The status of the request that failed first.
    pub const fn failure(&self) -> Option<WcStatus> {
        self.failure
    }

    /// Whether WRITEs of the peer into `region` are placed in address order, final byte last. Nobody WRITEs over UD.
    pub fn places_in_order(&self, region: &Region) -> bool {
        self.qp_type() == QpType::Ud || self.qp.places_in_order(region.mr())
    }

    /// Keeps a region alive as long as this pair's requests may name it, and makes it postable.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        self.regions.attach(region)
    }

    /// Takes a region away: nothing more names it, and another one may get its name. It is kept until what was posted
    /// has ended.
    pub fn detach(&mut self, id: RegionId) {
        if let Some(Attached { region, is_received_into }) = self.regions.detach(id) {
            let receives = if is_received_into { self.receives.posted } else { 0 };
            self.retire(receives, Named::Region { _kept: region });
        }
    }

    /// Keeps what is named by the sends posted until now, and by so many receives.
    fn retire(&mut self, receives: u64, named: Named) {
        self.retired.keep(Requests { sends: self.posted, receives }, named);
        self.release_retired();
    }

    #[inline]
    fn release_retired(&mut self) {
        if !self.retired.is_empty() {
            self.retired.release(Requests { sends: self.reaped, receives: self.receives.completed });
        }
    }

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

    /// Posts receives of no bytes, with tag 0: for what only wakes.
    ///
    /// # Errors
    /// If the receive queue is full or the pair refuses.
    pub fn post_empty_receives(&mut self, count: u32) -> Result<(), Error> {
        let wrs = [RecvWr::new(receive_wr_id(0), &[]); RECEIVES_AT_ONCE];
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(RECEIVES_AT_ONCE);
            self.hand_receives(&wrs[..now]).map_err(|e| *e.source)?;
            left -= now;
        }
        Ok(())
    }

    /// Prepares receives into attached regions.
    ///
    /// # Panics
    /// If one names what is not attached.
    pub fn receive_chain(&self, receives: &[Receive<'_>]) -> ReceiveChain {
        ReceiveChain::new(receives, &self.regions)
    }

    /// Posts some of the prepared receives.
    ///
    /// # Errors
    /// If the receive queue is full, they were prepared over other regions, or the pair refuses.
    #[inline]
    pub fn post_receives(&mut self, chain: &ReceiveChain, which: Range<usize>) -> Result<(), PostRefused> {
        if !self.regions.hold(&chain.regions) {
            return Err(PostRefused::NotAttached { qp_num: self.qp_num() });
        }
        self.receives.with_memory = true;
        // Here, since another pair may have prepared them.
        self.regions.receive_into(&chain.regions);
        let posted = self.hand_receives(&chain.wrs[which]);
        posted.map_err(|source| PostRefused::Post { qp_num: self.qp_num(), source })
    }

    #[inline]
    fn hand_receives(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the elements name pieces of attached regions, which this pair keeps mapped until these receives have
        // ended or it is destroyed; memory of regions is only read by atomics and bounded copies.
        let posted = unsafe { self.qp.post_recv(wrs) };
        self.receives.posted += posted.as_ref().map_or_else(|e| e.posted, |()| wrs.len()) as u64;
        posted
    }

    /// Accounts for a completion of this pair.
    #[inline]
    pub fn complete(&mut self, wc: &Wc) -> Completed {
        let (is_receive, ticket) = (is_receive(wc), wc.wr_id & TICKET_MASK);
        if is_receive {
            self.receives.completed += 1;
        } else if wc.status.is_success() || ticket != 0 {
            // An unsignalled request of a chain has no ticket; one that fails stands for none before it.
            self.reap(ticket);
        }
        self.release_retired();
        if !wc.status.is_success() {
            return self.fail(wc.status);
        }
        // It may be the last one, of what ended well before the error.
        self.try_end();
        if is_receive {
            return Completed::Received { tag: receive_tag(wc), len_bytes: wc.byte_len, imm: wc.imm() };
        }
        Completed::Send { tag: send_tag(wc), ticket: Ticket(self.reaped) }
    }

    /// Accounts for `count` receives of this pair that ended well: as [`QueuePair::complete`] for each.
    #[inline]
    pub fn complete_receives(&mut self, count: u32) {
        self.receives.completed += u64::from(count);
        self.try_end();
    }

    #[inline]
    fn reap(&mut self, low_bits: u64) {
        // Rebuild the full count from its low bits: never more than the queue's depth behind `posted`.
        let behind = self.posted.wrapping_sub(low_bits) & TICKET_MASK;
        self.reaped = self.reaped.max(self.posted.saturating_sub(behind));
    }

    #[cold]
    fn fail(&mut self, status: WcStatus) -> Completed {
        if self.state == PairState::Connected {
            self.failure.get_or_insert(status);
            self.close();
            return Completed::Failed(status);
        }
        self.try_end();
        Completed::Flushed
    }
}

/// Lets a kind of queue pair be used as one.
macro_rules! is_queue_pair {
    ($kind:ident) => {
        impl std::ops::Deref for $kind {
            type Target = QueuePair;

            fn deref(&self) -> &QueuePair {
                &self.0
            }
        }

        impl std::ops::DerefMut for $kind {
            fn deref_mut(&mut self) -> &mut QueuePair {
                &mut self.0
            }
        }

        impl From<$kind> for QueuePair {
            fn from(pair: $kind) -> Self {
                pair.0
            }
        }
    };
}
pub(crate) use is_queue_pair;

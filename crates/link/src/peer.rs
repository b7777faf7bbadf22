//! A connected queue pair.
//!
//! [`Peer`] is what makes posting safe. It keeps every region that its work requests name alive until the queue pair is
//! drained, addresses memory as (region, offset) with bounds checked, and counts what is posted and what is known to be
//! complete, so that owners ask [`Peer::is_done`] before they overwrite a source or reuse a destination.

use std::sync::Arc;

use farcall_verbs::{
    Access, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawQp, RecvWr, SendFlags,
    SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use thiserror::Error as ThisError;

use crate::bootstrap::QpInfo;
use crate::{Nic, Region, RemoteRegion};

/// Names a posted work request of one peer; later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(u64);

impl Ticket {
    /// Before everything: always done.
    pub const NONE: Self = Self(0);
}

/// A region attached to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(u8);

/// Where a peer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// The queue pair is made, not connected.
    Fresh,
    /// Ready to send.
    Connected,
    /// A work request failed, or the owner closes: in error, not everything is known to have ended.
    Draining,
    /// Nothing of ours is under way any more.
    Drained,
}

/// Sizes of a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerConfig {
    /// Sends outstanding.
    pub send_depth: u32,
    /// Empty receives kept posted: how many wake-ups the other side may have on the way.
    pub recv_depth: u32,
    /// One of so many inline sends is signalled; others always, since their buffers wait for the completion.
    pub signal_every: u16,
    /// Sends up to this many bytes are inline (no more than the device can).
    pub inline_max_bytes: u32,
    /// What the other side may do.
    pub access: Access,
}

/// Why something could not be posted.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum PeerError {
    /// The send queue is full; poll for completions first.
    #[error("send queue of QP {qp_num:#x} is full ({depth} outstanding); poll for completions first")]
    Full {
        /// Which pair.
        qp_num: u32,
        /// Its depth.
        depth: u32,
    },
    /// The target is not inside of what the peer granted.
    #[error(
        "QP {qp_num:#x}: {len_bytes} bytes at {offset} are outside of the peer's grant of {granted_bytes}"
    )]
    OutsideOfGrant {
        /// Which pair.
        qp_num: u32,
        /// Offset into the grant.
        offset: u64,
        /// Length asked for.
        len_bytes: u64,
        /// Length granted.
        granted_bytes: u64,
    },
    /// The queue pair refused.
    #[error("QP {qp_num:#x}: {source}")]
    Post {
        /// Which pair.
        qp_num: u32,
        /// Its reason.
        #[source]
        source: PostError,
    },
}

/// A completion of one of this peer's work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A send ended well; everything posted up to it is done. `tag` is what the poster gave.
    Send {
        /// The poster's mark.
        tag: u16,
        /// Which request.
        ticket: Ticket,
    },
    /// The other side woke us, with 32 bits.
    Woken {
        /// The immediate data.
        imm: u32,
    },
    /// A request failed: the pair is in error and drains.
    Failed(WcStatus),
    /// A request was flushed while draining.
    Flushed,
}

/// One side of a transfer: a piece of a region of ours.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which region.
    pub region: RegionId,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// The other side of a transfer: where in a grant of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// The grant.
    pub grant: &'a RemoteRegion,
    /// Offset into it.
    pub offset: usize,
}

/// A queue pair with its regions and accounts.
pub struct Peer {
    qp: Box<dyn RawQp>,
    // Kept until the pair is gone: work requests name them.
    regions: Vec<Arc<Region>>,
    config: PeerConfig,
    psn: u32,
    state: PeerState,
    posted: u64,
    reaped: u64,
    unsignalled: u16,
    marked: bool,
    failure: Option<WcStatus>,
}

const TICKET_BITS: u32 = 48;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;
const WAKE_WR_ID: u64 = u64::MAX;
const PSN_MASK: u32 = 0x00ff_ffff;

impl Peer {
    /// Makes a queue pair in INIT whose completions, of sends and receives, go to `cq`.
    ///
    /// # Errors
    /// Those of creating and initialising a queue pair.
    pub fn new(nic: &Nic, cq: &dyn RawCq, config: PeerConfig) -> Result<Self, Error> {
        let config =
            PeerConfig { inline_max_bytes: config.inline_max_bytes.min(nic.inline_max_bytes), ..config };
        let cap = QpCap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.recv_depth.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: config.inline_max_bytes,
        };
        let attr =
            QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap, qp_type: QpType::Rc, sq_sig_all: false };
        let mut qp = nic.pd.create_qp(&attr)?;
        qp.modify(&nic.port.init(config.access))?;
        let psn = nic.entropy.bytes::<4>().map_err(|e| Error::os("create peer", "random numbers", e))?;
        let psn = u32::from_le_bytes(psn) & PSN_MASK;
        let mut peer = Self {
            qp,
            regions: Vec::with_capacity(4),
            config,
            psn,
            state: PeerState::Fresh,
            posted: 0,
            reaped: 0,
            unsignalled: 0,
            marked: false,
            failure: None,
        };
        for _ in 0..config.recv_depth {
            peer.repost_wake()?;
        }
        Ok(peer)
    }

    /// What the other side needs to connect.
    pub fn info(&self, nic: &Nic) -> QpInfo {
        QpInfo {
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            gid: nic.gid().0,
            lid: nic.port.attr.lid,
            mtu_log2: 7 + nic.mtu() as u8,
        }
    }

    /// INIT → RTR → RTS.
    ///
    /// # Errors
    /// If the peer cannot be reached or its numbers are impossible.
    pub fn connect(&mut self, nic: &Nic, peer: &QpInfo) -> Result<(), Error> {
        if peer.qp_num > PSN_MASK || peer.psn > PSN_MASK {
            return Err(Error::invalid("connect", "a queue pair or packet number of more than 24 bits"));
        }
        let mtu = nic.mtu().min(peer.mtu());
        let path = nic.path_to(peer.gid(), peer.lid);
        let usual = QpAttr::rtr(peer.qp_num, peer.psn, path, mtu);
        let reads = |usual: Option<u8>| usual.map(|reads| reads.min(nic.reads_max));
        self.qp.modify(&QpAttr { max_dest_rd_atomic: reads(usual.max_dest_rd_atomic), ..usual })?;
        let usual = QpAttr::rts(self.psn);
        self.qp.modify(&QpAttr { max_rd_atomic: reads(usual.max_rd_atomic), ..usual })?;
        self.state = PeerState::Connected;
        Ok(())
    }

    /// Keeps a region alive as long as this peer and makes it postable.
    ///
    /// # Panics
    /// After 255 regions.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        let id = u8::try_from(self.regions.len()).expect("at most 255 regions a peer");
        self.regions.push(region);
        RegionId(id)
    }

    /// The queue pair's number.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Where it is in its life.
    pub const fn state(&self) -> PeerState {
        self.state
    }

    /// The status of the request that failed first.
    pub const fn failure(&self) -> Option<WcStatus> {
        self.failure
    }

    /// Whether WRITEs of the other side into `region` are placed in address order, final byte last.
    pub fn places_in_order(&self, region: &Region) -> bool {
        self.qp.places_in_order(region.mr())
    }

    /// How many sends can be posted now.
    #[inline]
    pub const fn room(&self) -> u32 {
        // One place is kept for the mark that ends draining.
        (self.config.send_depth as u64 - 1).saturating_sub(self.posted - self.reaped) as u32
    }

    /// Whether a request, and so all before it, is known to be complete.
    #[inline]
    pub const fn is_done(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.reaped
    }

    /// WRITEs a piece of ours. Short pieces go inline and are free at once: their ticket is [`Ticket::NONE`].
    ///
    /// # Errors
    /// If the queue is full, the target outside of the grant, or the pair refuses.
    #[inline]
    pub fn write(&mut self, from: Piece, to: Remote<'_>) -> Result<Ticket, PeerError> {
        let sges = [self.sge(from)];
        let addr = self.target(to, from.len_bytes)?;
        self.post(SendWr::write(0, &sges, addr, to.grant.rkey), 0, false)
    }

    /// WRITEs a piece of ours and wakes the other side with `imm`.
    ///
    /// # Errors
    /// As [`Peer::write`].
    pub fn write_imm(&mut self, from: Piece, to: Remote<'_>, imm: u32) -> Result<Ticket, PeerError> {
        let sges = [self.sge(from)];
        let addr = self.target(to, from.len_bytes)?;
        let wr = SendWr::write(0, &sges, addr, to.grant.rkey).with_imm(imm).with_flags(SendFlags::SOLICITED);
        self.post(wr, 0, false)
    }

    /// Wakes the other side with `imm` and no bytes (KICK).
    ///
    /// # Errors
    /// As [`Peer::write`].
    pub fn kick(&mut self, grant: &RemoteRegion, imm: u32) -> Result<Ticket, PeerError> {
        let wr = SendWr::write(0, &[], grant.addr, grant.rkey).with_imm(imm).with_flags(SendFlags::SOLICITED);
        self.post(wr, 0, false)
    }

    /// READs into a piece of ours. It is always signalled: its completion carries `tag`.
    ///
    /// # Errors
    /// As [`Peer::write`].
    #[inline]
    pub fn read(&mut self, into: Piece, from: Remote<'_>, tag: u16) -> Result<Ticket, PeerError> {
        let sges = [self.sge(into)];
        let addr = self.target(from, into.len_bytes)?;
        self.post(SendWr::read(0, &sges, addr, from.grant.rkey), tag, true)
    }

    #[inline]
    fn sge(&self, piece: Piece) -> Sge {
        self.regions[usize::from(piece.region.0)].sge(piece.offset, piece.len_bytes)
    }

    #[inline]
    fn target(&self, to: Remote<'_>, len_bytes: usize) -> Result<u64, PeerError> {
        if to.grant.holds(to.offset as u64, len_bytes as u64) {
            return Ok(to.grant.addr.wrapping_add(to.offset as u64));
        }
        Err(PeerError::OutsideOfGrant {
            qp_num: self.qp_num(),
            offset: to.offset as u64,
            len_bytes: len_bytes as u64,
            granted_bytes: to.grant.len_bytes,
        })
    }

    #[inline]
    fn post(&mut self, mut wr: SendWr<'_>, tag: u16, signal: bool) -> Result<Ticket, PeerError> {
        if self.room() == 0 && !self.marked {
            return Err(PeerError::Full { qp_num: self.qp_num(), depth: self.config.send_depth });
        }
        let ticket = self.posted + 1;
        wr.wr_id = u64::from(tag) << TICKET_BITS | ticket & TICKET_MASK;
        let inline = !wr.opcode.returns_data() && wr.len_bytes() <= u64::from(self.config.inline_max_bytes);
        if inline {
            wr.send_flags |= SendFlags::INLINE;
        }
        // Whoever waits for a ticket must not depend on how much is posted after it.
        let signal = signal || !inline || self.unsignalled + 1 >= self.config.signal_every;
        if signal {
            wr.send_flags |= SendFlags::SIGNALED;
        }
        // SAFETY: the only element names a piece of an attached region (bounds checked by `sge`), which this peer keeps
        // mapped until it is dropped, after draining or by the destruction of the pair. Contents that change too early
        // would garble a message but no memory of ours; owners prevent that by `is_done`.
        unsafe { self.qp.post_send(&[wr]) }
            .map_err(|source| PeerError::Post { qp_num: self.qp_num(), source })?;
        self.posted = ticket;
        self.unsignalled = if signal { 0 } else { self.unsignalled + 1 };
        Ok(if inline { Ticket::NONE } else { Ticket(ticket) })
    }

    fn repost_wake(&mut self) -> Result<(), Error> {
        // SAFETY: an empty receive names no memory.
        unsafe { self.qp.post_recv(&[RecvWr::new(WAKE_WR_ID, &[])]) }.map_err(|e| e.source)
    }

    /// Accounts for a completion of this pair.
    #[inline]
    pub fn complete(&mut self, wc: &Wc) -> Completed {
        let is_wake = wc.wr_id == WAKE_WR_ID;
        if !is_wake {
            self.reap(wc.wr_id & TICKET_MASK);
        }
        if !wc.status.is_success() {
            return self.fail(wc.status);
        }
        if is_wake {
            // A receive that cannot be posted again means a pair in error: its flushes will tell.
            let _ = self.repost_wake();
            debug_assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
            return Completed::Woken { imm: wc.imm().unwrap_or(0) };
        }
        Completed::Send { tag: (wc.wr_id >> TICKET_BITS) as u16, ticket: Ticket(self.reaped) }
    }

    #[inline]
    fn reap(&mut self, low_bits: u64) {
        // Rebuild the full count from its low bits: never more than the queue's depth behind `posted`.
        let behind = (self.posted.wrapping_sub(low_bits)) & TICKET_MASK;
        self.reaped = self.reaped.max(self.posted.saturating_sub(behind));
    }

    #[cold]
    fn fail(&mut self, status: WcStatus) -> Completed {
        if self.state == PeerState::Connected {
            self.failure.get_or_insert(status);
            self.close();
            return Completed::Failed(status);
        }
        self.try_end();
        Completed::Flushed
    }

    /// Starts draining: the pair goes to the error state, nothing new begins. Poll its completion queue, and call
    /// [`Peer::complete`], until [`Peer::is_drained`].
    pub fn close(&mut self) {
        if matches!(self.state, PeerState::Draining | PeerState::Drained) {
            return;
        }
        let was_connected = self.state == PeerState::Connected;
        // An error here means that the pair is gone altogether, which is what we want.
        let gone = self.qp.modify(&QpAttr::to(QpState::Err)).is_err();
        self.state = PeerState::Draining;
        if gone || !was_connected {
            self.reaped = self.posted;
        } else if self.posted > self.reaped {
            // Unsignalled requests that ended well before the error have no completion. This one has.
            self.marked = true;
            let mark = SendWr::write(0, &[], 0, 0);
            if self.post(mark, 0, true).is_err() {
                self.reaped = self.posted;
            }
        }
        self.try_end();
    }

    fn try_end(&mut self) {
        if self.state == PeerState::Draining && self.reaped == self.posted {
            self.state = PeerState::Drained;
        }
    }

    /// Whether nothing of ours is under way any more.
    pub fn is_drained(&self) -> bool {
        self.state == PeerState::Drained
    }

    /// Whether, besides, nothing of the *other side's* can touch what we granted: only then may that memory be used
    /// again under a new pair.
    pub fn is_quiesced(&self) -> bool {
        self.is_drained() && self.qp.is_quiesced()
    }
}

//! Work requests: converts buffers in attached regions to work requests with the memory layout of libibverbs.

use std::ops::Range;
use std::sync::Arc;

use farcall_verbs::{PostError, RecvWr, SendWr, Sge, Wc};
use thiserror::Error as ThisError;

use crate::{Region, RemoteRegion};

/// Identifies a posted send of one queue pair; later sends compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Precedes every send, and so is always done.
    pub const NONE: Self = Self(0);
}

/// Identifies a region attached to a queue pair. Queue pairs that attach the same regions in the same order use the
/// same identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(pub(crate) u32);

impl RegionId {
    /// Identifier of the region that was attached first.
    pub const FIRST: Self = Self(0);
}

/// A datagram destination of one [`crate::Datagrams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressId(pub(crate) usize);

/// The local side of a transfer: a buffer in an attached region.
#[derive(Clone, Copy, Debug)]
pub struct LocalSlice {
    /// The region.
    pub region: RegionId,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// The remote side of a transfer: a position in a grant of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// The grant.
    pub grant: &'a RemoteRegion,
    /// Offset into it.
    pub offset: usize,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// SEND over a connection.
    Send,
    /// SEND of a datagram.
    SendTo(AddressId),
    /// WRITE.
    Write(Remote<'a>),
    /// READ.
    Read(Remote<'a>),
    /// Compares 8 bytes with `compare` and, if they are equal, stores `swap`.
    CompareSwap {
        /// The 8 bytes in the peer's memory.
        at: Remote<'a>,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to 8 bytes.
    FetchAdd {
        /// The 8 bytes in the peer's memory.
        at: Remote<'a>,
        /// Addend.
        add: u64,
    },
}

/// A send work request in terms of attached regions.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Operation.
    pub operation: Operation<'a>,
    /// Source of the bytes; destination for READs and atomics.
    pub local: &'a [LocalSlice],
    /// Immediate data of a SEND or WRITE.
    pub imm: Option<u32>,
    /// `true` if a successful request generates a completion. A queue without signalled requests never has free slots
    /// again once it is full.
    pub is_signalled: bool,
}

/// Reasons for which a request was not posted.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum PostRefused {
    /// The send queue is full; poll for completions first.
    #[error("send queue of QP {qp_num:#x} is full ({depth} outstanding); poll for completions first")]
    Full {
        /// Number of the queue pair.
        qp_num: u32,
        /// Depth of its send queue.
        depth: u32,
    },
    /// The target is not inside the peer's grant.
    #[error(
        "QP {qp_num:#x}: {len_bytes} bytes at {offset} are outside of the peer's grant of {granted_bytes}"
    )]
    OutsideOfGrant {
        /// Number of the queue pair.
        qp_num: u32,
        /// Offset into the grant.
        offset: u64,
        /// Requested length in bytes.
        len_bytes: u64,
        /// Granted length in bytes.
        granted_bytes: u64,
    },
    /// A prepared request names a region, or a datagram destination, that this queue pair does not have.
    #[error(
        "QP {qp_num:#x}: the requests were prepared for other regions or destinations; prepare them again"
    )]
    NotAttached {
        /// Number of the queue pair; 0 for a shared receive queue.
        qp_num: u32,
    },
    /// The provider refused the request.
    #[error("QP {qp_num:#x}: the provider refused a request")]
    Post {
        /// Number of the queue pair; 0 for a shared receive queue.
        qp_num: u32,
        /// Its reason.
        #[source]
        source: PostError,
    },
}

/// Maximum number of SGEs of a work request.
pub const SGES_MAX: usize = 8;

/// Distinguishes receives from sends in `wr_id`. The `wr_id` of a send contains the caller's tag above the low bits of
/// its ticket.
const RECEIVE_BIT: u64 = 1 << 63;
const TICKET_BITS: u32 = 40;
pub(crate) const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

#[inline]
pub(crate) fn send_wr_id(tag: u32, ticket: u64) -> u64 {
    (u64::from(tag) << TICKET_BITS | ticket & TICKET_MASK) & !RECEIVE_BIT
}

#[inline]
pub(crate) fn receive_wr_id(tag: u64) -> u64 {
    tag | RECEIVE_BIT
}

/// Returns whether a completion, of any status, belongs to a receive.
#[inline]
pub fn is_receive(wc: &Wc) -> bool {
    wc.wr_id & RECEIVE_BIT != 0
}

/// Returns the tag with which a completed send was posted. Unsignalled requests of a chain that fail have tag 0.
#[inline]
pub fn send_tag(wc: &Wc) -> u32 {
    (wc.wr_id >> TICKET_BITS) as u32
}

/// Returns the tag with which a completed receive was posted.
#[inline]
pub fn receive_tag(wc: &Wc) -> u64 {
    wc.wr_id & !RECEIVE_BIT
}

/// A region as stored in prepared requests: its identifier at the queue pair, and its unique number.
pub(crate) type RegionUse = (RegionId, u64);

/// Send work requests that are checked once and can be posted together many times: by the queue pair that prepared
/// them or, unless they are datagrams, by any that attached the same regions under the same identifiers.
pub struct Chain {
    /// Never changed, because `wrs` points into it.
    _sges: Vec<Sge>,
    pub(crate) wrs: Box<[SendWr<'static>]>,
    /// Indices of the signalled requests.
    pub(crate) signalled: Box<[u32]>,
    pub(crate) regions: Box<[RegionUse]>,
    /// Serial number of the queue pair's datagram destinations; 0 if there are none.
    pub(crate) addresses_of: u64,
}

impl Chain {
    pub(crate) fn new(
        requests: &[WorkRequest<'_>],
        regions: &Regions,
        addresses_of: u64,
        prepare: impl Fn(&WorkRequest<'_>, &'static [Sge]) -> Result<SendWr<'static>, PostRefused>,
    ) -> Result<Self, PostRefused> {
        let pieces = || requests.iter().flat_map(|request| request.local);
        let sges: Vec<Sge> = pieces().map(|piece| regions.sge(*piece)).collect();
        let lens = requests.iter().map(|request| request.local.len());
        let wrs = requests.iter().zip(lists(&sges, lens)).map(|(request, sges)| prepare(request, sges));
        let wrs = wrs.collect::<Result<_, _>>()?;
        let signalled = (0..).zip(requests).filter(|(_, request)| request.is_signalled).map(|(at, _)| at);
        Ok(Self {
            wrs,
            signalled: signalled.collect(),
            regions: regions.region_uses(pieces()),
            addresses_of,
            _sges: sges,
        })
    }
}

/// A receive work request in terms of attached regions. Datagrams are preceded by 40 bytes of header (IBA 11.4.1.2).
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// Destination of the message.
    pub local: &'a [LocalSlice],
    /// Tag of its completion; less than 2^63.
    pub tag: u64,
}

/// Receives that are checked once; any range of them can be posted together many times, to a queue that attached the
/// same regions under the same identifiers.
pub struct ReceiveChain {
    /// Never changed, because `wrs` points into it.
    _sges: Vec<Sge>,
    pub(crate) wrs: Box<[RecvWr<'static>]>,
    pub(crate) regions: Box<[RegionUse]>,
}

impl ReceiveChain {
    pub(crate) fn new(receives: &[Receive<'_>], regions: &Regions) -> Self {
        let pieces = || receives.iter().flat_map(|receive| receive.local);
        let sges: Vec<Sge> = pieces().map(|piece| regions.sge(*piece)).collect();
        let lens = receives.iter().map(|receive| receive.local.len());
        let of = |(receive, sges): (&Receive<'_>, _)| RecvWr::new(receive_wr_id(receive.tag), sges);
        let wrs = receives.iter().zip(lists(&sges, lens)).map(of).collect();
        Self { wrs, regions: regions.region_uses(pieces()), _sges: sges }
    }

    /// Sets the tag of a range of the receives.
    #[inline]
    pub fn set_tag(&mut self, which: Range<usize>, tag: u64) {
        self.wrs[which].iter_mut().for_each(|wr| wr.wr_id = receive_wr_id(tag));
    }
}

/// Splits `sges` into lists of the given lengths, for work requests that are stored together with them.
fn lists(sges: &[Sge], lens: impl Iterator<Item = usize>) -> impl Iterator<Item = &'static [Sge]> {
    let mut rest = sges;
    lens.map(move |len| {
        let (list, after) = rest.split_at(len);
        rest = after;
        // SAFETY: a chain stores the vector into which this points as long as the requests, and never changes or grows
        // it. The requests are not accessible without the chain.
        unsafe { std::slice::from_raw_parts(list.as_ptr(), len) }
    })
}

/// Regions that the work requests of a queue may name.
#[derive(Default)]
pub(crate) struct Regions(Vec<Option<Attached>>);

pub(crate) struct Attached {
    pub region: Arc<Region>,
    /// `true` if posted receives have named it.
    pub is_receive_target: bool,
}

impl Regions {
    pub(crate) fn attach(&mut self, region: Arc<Region>) -> RegionId {
        RegionId(insert_free(&mut self.0, Attached { region, is_receive_target: false }) as u32)
    }

    /// Removes and returns the region, which requests posted before may still name.
    pub(crate) fn detach(&mut self, id: RegionId) -> Option<Attached> {
        self.0.get_mut(id.0 as usize)?.take()
    }

    /// Records that receives name these regions.
    #[inline]
    pub(crate) fn record_receive_targets(&mut self, uses: &[RegionUse]) {
        for (id, _) in uses {
            if let Some(Some(attached)) = self.0.get_mut(id.0 as usize) {
                attached.is_receive_target = true;
            }
        }
    }

    fn get(&self, id: RegionId) -> Option<&Region> {
        self.0.get(id.0 as usize)?.as_ref().map(|attached| &*attached.region)
    }

    /// # Panics
    /// If the region is not attached, or the buffer is not inside it, which is an error of this program and never a
    /// peer's.
    #[inline]
    pub(crate) fn sge(&self, piece: LocalSlice) -> Sge {
        let region = self.get(piece.region).expect("a region that is attached");
        region.sge(piece.offset, piece.len_bytes)
    }

    fn region_uses<'a>(&self, pieces: impl Iterator<Item = &'a LocalSlice>) -> Box<[RegionUse]> {
        let mut uses: Vec<RegionUse> = Vec::new();
        for LocalSlice { region, .. } in pieces {
            if !uses.iter().any(|(id, _)| id == region) {
                let serial = self.get(*region).map_or(0, Region::serial);
                uses.push((*region, serial));
            }
        }
        uses.into()
    }

    /// Returns whether all these regions are still attached under their identifiers.
    #[inline]
    pub(crate) fn are_attached(&self, uses: &[RegionUse]) -> bool {
        // Most chains name one region.
        uses.iter().all(|(id, serial)| self.get(*id).is_some_and(|region| region.serial() == *serial))
    }
}

/// Stores `what` in the first free slot and returns its index.
pub(crate) fn insert_free<T>(slots: &mut Vec<Option<T>>, what: T) -> usize {
    let at = slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    slots[at] = Some(what);
    at
}

//! What is posted: pieces of attached regions in, work requests with the memory layout of libibverbs out.

use std::ops::Range;
use std::sync::Arc;

use farcall_verbs::{PostError, RecvWr, SendWr, Sge, Wc};
use thiserror::Error as ThisError;

use crate::{Region, RemoteRegion};

/// Names a posted send of one queue pair; later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Before everything: always done.
    pub const NONE: Self = Self(0);
}

/// A region attached to a queue pair. Pairs that attach the same regions in the same order name them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(pub(crate) u32);

impl RegionId {
    /// What every queue calls the region that it attached first.
    pub const FIRST: Self = Self(0);
}

/// A destination of datagrams, of one [`crate::Datagrams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressId(pub(crate) usize);

/// The local side of a transfer: a piece of an attached region.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which region.
    pub region: RegionId,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// The remote side of a transfer: where in a grant of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// The grant.
    pub grant: &'a RemoteRegion,
    /// Offset into it.
    pub offset: usize,
}

/// What a work request does.
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
        /// The 8 bytes.
        at: Remote<'a>,
        /// What they should be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// Adds to 8 bytes.
    FetchAdd {
        /// The 8 bytes.
        at: Remote<'a>,
        /// What is added.
        add: u64,
    },
}

/// A send work request in terms of attached regions.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// What it does.
    pub operation: Operation<'a>,
    /// Where the bytes come from; of READs and atomics, where they go.
    pub local: &'a [Piece],
    /// Immediate data of a SEND or WRITE.
    pub imm: Option<u32>,
    /// Whether it makes a completion if it ends well. A queue whose requests are never signalled is full for ever.
    pub is_signalled: bool,
}

/// Why something could not be posted.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum PostRefused {
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
    /// A prepared request names a region, or a destination of datagrams, that this pair does not have.
    #[error(
        "QP {qp_num:#x}: the requests were prepared for other regions or destinations; prepare them again"
    )]
    NotAttached {
        /// Which pair; 0 of a shared receive queue.
        qp_num: u32,
    },
    /// The queue pair refused.
    #[error("QP {qp_num:#x}: {source}")]
    Post {
        /// Which pair; 0 of a shared receive queue.
        qp_num: u32,
        /// Its reason.
        #[source]
        source: PostError,
    },
}

/// Elements of one work request, at most.
pub const SGES_MAX: usize = 8;

/// A completion's `wr_id` tells receives from sends. A send's has its owner's tag above the low bits of its ticket.
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

/// Whether a completion, of whatever status, is a receive's.
#[inline]
pub fn is_receive(wc: &Wc) -> bool {
    wc.wr_id & RECEIVE_BIT != 0
}

/// The tag that a completed send was posted with. Those of a chain that are not signalled, and fail, have none: 0.
#[inline]
pub fn send_tag(wc: &Wc) -> u32 {
    (wc.wr_id >> TICKET_BITS) as u32
}

/// The tag that a completed receive was posted with.
#[inline]
pub fn receive_tag(wc: &Wc) -> u64 {
    wc.wr_id & !RECEIVE_BIT
}

/// A region as prepared requests remember it: its name at the pair, and which region it must be.
pub(crate) type Named = (RegionId, u64);

/// Send work requests that are checked once and posted, together, as often as wanted: by the pair that prepared them,
/// or, unless they are datagrams, by any that attached the same regions under the same names.
pub struct Chain {
    /// `wrs` points into it: it is never changed.
    _sges: Vec<Sge>,
    pub(crate) wrs: Box<[SendWr<'static>]>,
    /// Which are signalled.
    pub(crate) signalled: Box<[u32]>,
    pub(crate) regions: Box<[Named]>,
    /// The pair that holds the destinations of datagrams; 0 if there are none.
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
            regions: regions.named(pieces()),
            addresses_of,
            _sges: sges,
        })
    }
}

/// A receive work request in terms of attached regions. Datagrams come behind 40 bytes of header (IBA 11.4.1.2).
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// Where a SEND's bytes go.
    pub local: &'a [Piece],
    /// What its completion carries; less than 2^63.
    pub tag: u64,
}

/// Receives that are checked once and posted, any part of them together, as often as wanted: to a queue that attached
/// the same regions under the same names.
pub struct ReceiveChain {
    /// `wrs` points into it: it is never changed.
    _sges: Vec<Sge>,
    pub(crate) wrs: Box<[RecvWr<'static>]>,
    pub(crate) regions: Box<[Named]>,
}

impl ReceiveChain {
    pub(crate) fn new(receives: &[Receive<'_>], regions: &Regions) -> Self {
        let pieces = || receives.iter().flat_map(|receive| receive.local);
        let sges: Vec<Sge> = pieces().map(|piece| regions.sge(*piece)).collect();
        let lens = receives.iter().map(|receive| receive.local.len());
        let of = |(receive, sges): (&Receive<'_>, _)| RecvWr::new(receive_wr_id(receive.tag), sges);
        let wrs = receives.iter().zip(lists(&sges, lens)).map(of).collect();
        Self { wrs, regions: regions.named(pieces()), _sges: sges }
    }

    /// Gives some of them one tag.
    #[inline]
    pub fn set_tag(&mut self, which: Range<usize>, tag: u64) {
        self.wrs[which].iter_mut().for_each(|wr| wr.wr_id = receive_wr_id(tag));
    }
}

/// Cuts `sges` into lists of the given lengths, for work requests that are kept together with them.
fn lists(sges: &[Sge], lens: impl Iterator<Item = usize>) -> impl Iterator<Item = &'static [Sge]> {
    let mut rest = sges;
    lens.map(move |len| {
        let (list, after) = rest.split_at(len);
        rest = after;
        // SAFETY: a chain keeps the vector that this points into as long as the requests, and never changes or grows
        // it; nothing lends the requests without the chain.
        unsafe { std::slice::from_raw_parts(list.as_ptr(), len) }
    })
}

/// Regions that the work requests of a queue may name.
#[derive(Default)]
pub(crate) struct Regions(Vec<Option<Attached>>);

pub(crate) struct Attached {
    pub region: Arc<Region>,
    /// Whether receives have named it.
    pub is_received_into: bool,
}

impl Regions {
    pub(crate) fn attach(&mut self, region: Arc<Region>) -> RegionId {
        RegionId(put(&mut self.0, Attached { region, is_received_into: false }) as u32)
    }

    /// The region, which requests that were posted before may still name.
    pub(crate) fn detach(&mut self, id: RegionId) -> Option<Attached> {
        self.0.get_mut(id.0 as usize)?.take()
    }

    /// Receives name these, which are attached.
    #[inline]
    pub(crate) fn receive_into(&mut self, named: &[Named]) {
        for (id, _) in named {
            if let Some(Some(attached)) = self.0.get_mut(id.0 as usize) {
                attached.is_received_into = true;
            }
        }
    }

    fn get(&self, id: RegionId) -> Option<&Region> {
        self.0.get(id.0 as usize)?.as_ref().map(|attached| &*attached.region)
    }

    /// # Panics
    /// If the region is not attached, or the piece not inside: our own error, never a peer's.
    #[inline]
    pub(crate) fn sge(&self, piece: Piece) -> Sge {
        let region = self.get(piece.region).expect("a region that is attached");
        region.sge(piece.offset, piece.len_bytes)
    }

    fn named<'a>(&self, pieces: impl Iterator<Item = &'a Piece>) -> Box<[Named]> {
        let mut named: Vec<Named> = Vec::new();
        for Piece { region, .. } in pieces {
            if !named.iter().any(|(id, _)| id == region) {
                let serial = self.get(*region).map_or(0, Region::serial);
                named.push((*region, serial));
            }
        }
        named.into()
    }

    /// Whether all of these are attached, and are the regions that they were.
    #[inline]
    pub(crate) fn hold(&self, named: &[Named]) -> bool {
        // Most name one.
        named.iter().all(|(id, serial)| self.get(*id).is_some_and(|region| region.serial() == *serial))
    }
}

/// Puts something into the first free place.
pub(crate) fn put<T>(places: &mut Vec<Option<T>>, what: T) -> usize {
    let at = places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[at] = Some(what);
    at
}

//! What users ask for, and what comes back.

use std::sync::Arc;

use bytes::Bytes;
use farcall_link::{Region, RegionId};
use farcall_verbs::WcStatus;
use thiserror::Error;

use crate::merging::{Direction, Memory};

/// Local memory of a request: where written bytes come from, where read ones go. It is moved in, and back when the
/// request is over, so that nobody can touch it meanwhile.
#[derive(Debug)]
pub enum Buffer {
    /// Memory of the program's own: all of its bytes. Short ones are copied through the session's pool, long ones
    /// registered ([`crate::Config::register_from_bytes`]).
    Owned(Vec<u8>),
    /// Memory that others read, too: bytes to write, never room for what is read. It is copied through the session's
    /// pool, and no longer than that.
    Shared(Bytes),
    /// Registered memory: nothing is copied.
    Registered(Slice),
}

impl Buffer {
    /// Its length.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            Self::Registered(slice) => slice.len_bytes,
        }
    }

    /// The bytes of an [`Buffer::Owned`].
    pub fn into_owned(self) -> Option<Vec<u8>> {
        match self {
            Self::Owned(bytes) => Some(bytes),
            Self::Shared(_) | Self::Registered(_) => None,
        }
    }
}

impl From<Slice> for Buffer {
    fn from(slice: Slice) -> Self {
        Self::Registered(slice)
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

/// Registered memory that a session's requests may use; made by [`crate::Session::attach`].
#[derive(Clone)]
pub struct Attached(pub(crate) Arc<AttachedRegion>);

pub(crate) struct AttachedRegion {
    pub region: Arc<Region>,
    /// Of the session.
    pub session: u64,
    /// What each queue pair calls it.
    pub ids: Vec<RegionId>,
}

impl Attached {
    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it is not inside of the region.
    pub fn slice(&self, offset: usize, len_bytes: usize) -> Slice {
        // It checks.
        let _ = self.0.region.sge(offset, len_bytes);
        Slice { memory: self.clone(), offset, len_bytes }
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attached({} bytes)", self.0.region.len_bytes())
    }
}

/// A part of [`Attached`] memory. Who keeps another way to the same bytes must leave them alone until the request is
/// over, or garbles what is written or read.
#[derive(Clone, Debug)]
pub struct Slice {
    pub(crate) memory: Attached,
    pub(crate) offset: usize,
    pub(crate) len_bytes: usize,
}

/// A request to read or write a range of the peer's memory.
#[derive(Debug)]
pub struct Request<C> {
    /// Which way.
    pub direction: Direction,
    /// Which of the peer's grants, in the order in which [`crate::Session::connect`] got them.
    pub grant: u32,
    /// Where in the grant.
    pub offset: u64,
    /// As many bytes as this has.
    pub buffer: Buffer,
    /// What the caller needs when it is over.
    pub context: C,
}

impl<C> Request<C> {
    /// Reads `buffer.len_bytes()` bytes at `offset` of the peer's first grant into `buffer`.
    pub fn read(offset: u64, buffer: impl Into<Buffer>, context: C) -> Self {
        Self { direction: Direction::Read, grant: 0, offset, buffer: buffer.into(), context }
    }

    /// Writes `buffer` to `offset` of the peer's first grant.
    pub fn write(offset: u64, buffer: impl Into<Buffer>, context: C) -> Self {
        Self { direction: Direction::Write, grant: 0, offset, buffer: buffer.into(), context }
    }
}

/// A request that is over.
#[derive(Debug)]
pub struct Done<C> {
    /// That of the request.
    pub context: C,
    /// That of the request. After a failure it holds nothing in particular.
    pub buffer: Buffer,
    /// Whether the bytes were read or written, all of them.
    pub result: Result<(), Failure>,
}

/// Told of requests that are over: the callback. It is called by the thread that found out, with no lock held: it may
/// submit. It must not wait for other requests of its session.
pub trait Handler: Send + Sync + 'static {
    /// What requests carry.
    type Context: Send + 'static;

    /// A request is over. Each request that was taken is told of once, if its poller lives so long.
    fn done(&self, done: Done<Self::Context>);
}

/// Why a request that was taken brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Its work request failed. A WRITE may have changed a part of its range.
    #[error("the work request failed: {0}; make a new session")]
    Failed(WcStatus),
    /// It was under way when another one failed, or the session was closed. A WRITE may have changed all, a part or
    /// nothing of its range.
    #[error("the session ended while it was under way: {0}")]
    Unknown(SessionEnd),
    /// It was never posted: a WRITE has changed nothing.
    #[error("it was not posted: {0}")]
    NotPosted(SessionEnd),
    /// Its memory could not be registered: it was never posted.
    #[error("it was not posted: its {len_bytes} bytes of memory cannot be registered: {why}")]
    NotRegistered {
        /// How much.
        len_bytes: usize,
        /// The device's reason.
        why: String,
    },
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// Its owner closed it.
    #[error("the session was closed by its owner")]
    Closed,
    /// A work request failed, and with it its queue pair.
    #[error("QP {qp_num:#x} failed ({status}); make a new session")]
    PairFailed {
        /// Which queue pair.
        qp_num: u32,
        /// How.
        status: WcStatus,
    },
    /// Nobody looks for its completions any more: what was under way may never be told of.
    #[error("nobody looks for its completions: {0}; make a new poller and session")]
    PollFailed(String),
    /// A queue pair refused a work request.
    #[error("{0}; make a new session")]
    PostRefused(String),
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The session has no peer yet.
    #[error("the session is not connected; call connect first")]
    NotConnected,
    /// The session is over.
    #[error("{0}")]
    Ended(SessionEnd),
    /// Too many are not over.
    #[error("{outstanding} requests are not over; wait for one")]
    Full {
        /// How many may be.
        outstanding: usize,
    },
    /// The range is not inside of what the peer granted, or empty.
    #[error("{len_bytes} bytes at {offset} are no range of grant {grant}, which has {granted_bytes} bytes")]
    NoSuchRange {
        /// Which grant.
        grant: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        len_bytes: usize,
        /// How many it has; 0 if there is none.
        granted_bytes: u64,
    },
    /// More bytes than a work request, or, of what is copied, the pool can have.
    #[error("{len_bytes} bytes are more than one request can have ({max_bytes}); split it")]
    TooLong {
        /// How many bytes.
        len_bytes: usize,
        /// How many there may be.
        max_bytes: u64,
    },
    /// What is read cannot go to memory that others read, too.
    #[error("a read cannot go to shared memory; give it memory of its own")]
    SharedMemory,
    /// The registered memory is attached to another session.
    #[error("the memory is attached to another session; attach it to this one")]
    ForeignMemory,
}

/// A request that was not taken, and why.
#[derive(Debug)]
pub struct Refused<C> {
    /// It, unchanged.
    pub request: Request<C>,
    /// Why.
    pub why: Refusal,
}

/// A request that was taken, until it is over.
pub(crate) struct Entry<C> {
    pub len_bytes: usize,
    pub local: Local,
    pub context: C,
}

/// Where its bytes are.
pub(crate) enum Local {
    Pool(Vec<u8>),
    /// Copied through the pool, too.
    Shared(Bytes),
    Slice(Slice),
    /// Registered when it is posted.
    ToRegister(Vec<u8>),
    Registered(Arc<Region>),
}

impl Local {
    pub fn of(buffer: Buffer, register_from_bytes: usize) -> Self {
        match buffer {
            Buffer::Owned(bytes) if bytes.len() >= register_from_bytes => Self::ToRegister(bytes),
            Buffer::Owned(bytes) => Self::Pool(bytes),
            Buffer::Shared(bytes) => Self::Shared(bytes),
            Buffer::Registered(slice) => Self::Slice(slice),
        }
    }

    pub const fn memory(&self) -> Memory {
        match self {
            Self::Pool(_) | Self::Shared(_) => Memory::Pool,
            Self::Slice(_) => Memory::Registered,
            Self::ToRegister(_) | Self::Registered(_) => Memory::Alone,
        }
    }

    /// Gives the memory back.
    ///
    /// # Panics
    /// If a work request still names it: our own error.
    fn into_buffer(self) -> Buffer {
        match self {
            Self::Pool(bytes) | Self::ToRegister(bytes) => Buffer::Owned(bytes),
            Self::Shared(bytes) => Buffer::Shared(bytes),
            Self::Slice(slice) => Buffer::Registered(slice),
            Self::Registered(region) => {
                let memory = Arc::into_inner(region).and_then(Region::into_memory);
                Buffer::Owned(memory.expect("memory that nothing names any more"))
            }
        }
    }
}

impl<C> Entry<C> {
    pub fn done(self, result: Result<(), Failure>) -> Done<C> {
        Done { context: self.context, buffer: self.local.into_buffer(), result }
    }
}

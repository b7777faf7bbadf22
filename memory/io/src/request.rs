//! Requests of the user, and their results.

use std::sync::Arc;

use bytes::Bytes;
use farcall_link::{Region, RegionId};
use farcall_verbs::WcStatus;
use thiserror::Error;

use crate::merging::{Direction, Memory};

/// Local memory of a request: source of a write, destination of a read. It is moved into the request, and returned when
/// the request has completed, so that no other code accesses it in the meantime.
#[derive(Debug)]
pub enum Buffer {
    /// Memory that the program owns; all bytes are used. Short buffers are copied through the session's pool, long ones
    /// are registered ([`crate::Config::register_from_bytes`]).
    Owned(Vec<u8>),
    /// Memory that other code may read at the same time. Only a write may use it. It is copied through the session's
    /// pool, and cannot be longer than the pool.
    Shared(Bytes),
    /// Registered memory, which is used without a copy.
    Registered(Slice),
}

impl Buffer {
    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            Self::Registered(slice) => slice.len_bytes,
        }
    }

    /// Returns the bytes of a [`Buffer::Owned`], and `None` for other buffers.
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

/// Registered memory that requests of a session may use; created by [`crate::Session::attach`].
#[derive(Clone)]
pub struct Attached(pub(crate) Arc<AttachedRegion>);

pub(crate) struct AttachedRegion {
    pub region: Arc<Region>,
    /// Serial number of the session.
    pub session: u64,
    /// Identifier of the region at each queue pair of the session.
    pub ids: Vec<RegionId>,
}

impl Attached {
    /// Returns the region.
    pub fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// Returns a range of the region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn slice(&self, offset: usize, len_bytes: usize) -> Slice {
        // This call checks the range.
        let _ = self.0.region.sge(offset, len_bytes);
        Slice { memory: self.clone(), offset, len_bytes }
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attached({} bytes)", self.0.region.len_bytes())
    }
}

/// A range of [`Attached`] memory. The program must not access the same bytes by other means until the request has
/// completed; otherwise the bytes that are written or read are unspecified.
#[derive(Clone, Debug)]
pub struct Slice {
    pub(crate) memory: Attached,
    pub(crate) offset: usize,
    pub(crate) len_bytes: usize,
}

/// A request to read or write a range of the peer's memory.
#[derive(Debug)]
pub struct Request<C> {
    /// Whether the range is read or written.
    pub direction: Direction,
    /// Number of the peer's grant: its index in the list passed to [`crate::Session::connect`], or the number that
    /// [`crate::Session::grant`] returned.
    pub grant: u32,
    /// Offset in the grant in bytes.
    pub offset: u64,
    /// Local memory; its length is that of the range.
    pub buffer: Buffer,
    /// Value that is returned to the caller when the request has completed.
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

/// A request that has completed.
#[derive(Debug)]
pub struct TransferCompletion<C> {
    /// Context of the request.
    pub context: C,
    /// Buffer of the request. After a failed read, its contents are unspecified.
    pub buffer: Buffer,
    /// `Ok` if all bytes were read or written.
    pub result: Result<(), TransferFailure>,
}

/// Callback for completed requests. The thread that detects the completion calls it without holding a lock, so it may
/// submit requests. It must not wait for other requests of its session.
pub trait Handler: Send + Sync + 'static {
    /// Value that each request carries.
    type Context: Send + 'static;

    /// Called when a request has completed: once for each accepted request, unless its poller is dropped or fails.
    fn on_completion(&self, completion: TransferCompletion<Self::Context>);
}

/// Reason why an accepted request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferFailure {
    /// The work request of this request failed. A WRITE may have changed a part of its range.
    #[error("the work request failed: {0}; make a new session")]
    Failed(WcStatus),
    /// The request was in flight when another one failed or the session was closed. A WRITE may have changed its range
    /// completely, in part or not at all.
    #[error("the session ended while it was in flight: {0}")]
    Unknown(SessionEnd),
    /// The request was never posted; a WRITE has changed nothing.
    #[error("it was not posted: {0}")]
    NotPosted(SessionEnd),
    /// The memory of the request could not be registered, so the request was never posted.
    #[error("it was not posted: its {len_bytes} bytes of memory cannot be registered: {why}")]
    NotRegistered {
        /// Length of the memory in bytes.
        len_bytes: usize,
        /// The device's reason.
        why: String,
    },
}

/// Reason why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The user closed the session.
    #[error("the session was closed by its owner")]
    Closed,
    /// A work request failed, which ended its queue pair.
    #[error("QP {qp_num:#x} failed ({status}); make a new session")]
    PairFailed {
        /// Number of the queue pair.
        qp_num: u32,
        /// Status of the completion.
        status: WcStatus,
    },
    /// Its completion queue is not polled any more. Requests that were in flight may never complete.
    #[error("no thread polls its completions: {0}; make a new poller and session")]
    PollFailed(String),
    /// A queue pair refused a work request.
    #[error("{0}; make a new session")]
    PostRefused(String),
}

/// Reason why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The session has no peer yet.
    #[error("the session is not connected; call connect first")]
    NotConnected,
    /// The session has ended.
    #[error("{0}")]
    Ended(SessionEnd),
    /// The maximum number of requests is outstanding.
    #[error("{outstanding} requests are not over; wait for one")]
    Full {
        /// The maximum ([`crate::Config::outstanding`]).
        outstanding: usize,
    },
    /// The range is empty, or not inside the grant.
    #[error("{len_bytes} bytes at {offset} are no range of grant {grant}, which has {granted_bytes} bytes")]
    NoSuchRange {
        /// Number of the grant.
        grant: u32,
        /// Offset in the grant in bytes.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: usize,
        /// Length of the grant in bytes; 0 if there is no such grant.
        granted_bytes: u64,
    },
    /// The request is longer than a work request can be or, for shared memory, longer than the pool.
    #[error("{len_bytes} bytes are more than one request can have ({max_bytes}); split it")]
    TooLong {
        /// Length of the request in bytes.
        len_bytes: usize,
        /// Maximum length in bytes.
        max_bytes: u64,
    },
    /// A read cannot use shared memory as its destination.
    #[error("a read cannot go to shared memory; give it memory of its own")]
    SharedMemory,
    /// The registered memory is attached to another session.
    #[error("the memory is attached to another session; attach it to this one")]
    ForeignMemory,
}

/// A request that was not accepted, with the reason.
#[derive(Debug)]
pub struct SubmitError<C> {
    /// The unchanged request.
    pub request: Request<C>,
    /// The reason.
    pub why: Refusal,
}

/// An accepted request that has not completed.
pub(crate) struct Entry<C> {
    pub len_bytes: usize,
    pub local: Local,
    pub context: C,
}

/// Local memory of an accepted request.
pub(crate) enum Local {
    /// Copied through the pool.
    Pool(Vec<u8>),
    /// Copied through the pool; only written from.
    Shared(Bytes),
    /// A range of attached memory.
    Slice(Slice),
    /// Registered when the request is posted.
    ToRegister(Vec<u8>),
    /// Registered for this request.
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

    /// Returns the memory to the user.
    ///
    /// # Panics
    /// If a work request still refers to it: an internal error.
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
    pub fn complete(self, result: Result<(), TransferFailure>) -> TransferCompletion<C> {
        TransferCompletion { context: self.context, buffer: self.local.into_buffer(), result }
    }
}

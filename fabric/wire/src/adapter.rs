//! Interface between the transport and the channel adapter that contains it.

use farcall_verbs::{Access, AsyncEventKind, QpState, Wc};

use crate::packet::{AtomicEth, Packet, Reth};
use crate::psn::Psn;

/// Identifies a memory access of the responder. Tokens of one queue pair are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

/// State of a memory access of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOutcome<T = ()> {
    /// The access has completed.
    Done(T),
    /// The key, its bounds or its permissions do not allow the access.
    Denied,
    /// The access is in progress. The adapter reports its outcome by [`crate::Qp::accessed`].
    Pending,
}

/// Error: the memory must not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key, its bounds or its rights do not allow the access")]
pub struct AccessDenied;

/// Payload of a packet to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a, S> {
    /// No bytes.
    None,
    /// Bytes of a send request's elements.
    Send {
        /// The posted request.
        send: &'a S,
        /// Offset of the bytes in the message.
        offset: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// Bytes of a region that a READ addresses.
    Region(Reth),
}

/// Destination of received payload.
#[derive(Clone, Copy, Debug)]
pub enum PlacementTarget<'a, R> {
    /// A receive, at this offset in bytes.
    Receive(&'a R, u64),
    /// A receive, after the [`GRH_BYTES`] that the adapter fills with the route header.
    Datagram(&'a R),
    /// The memory that a WRITE addresses, at this offset in bytes.
    Region(Reth, u64),
}

/// Length in bytes of the header before a received datagram (`struct ibv_grh`).
pub const GRH_BYTES: u64 = 40;

/// A timer of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Timeout of an acknowledgement.
    Ack,
    /// Wait after an RNR NAK, until the peer may have a receive.
    Rnr,
    /// Wait until the rate allows the next packet.
    Pace,
}

impl Timer {
    /// All timers, indexed by their number.
    pub const ALL: [Self; 3] = [Self::Ack, Self::Rnr, Self::Pace];
}

/// An event for the application thread of the queue pair, for counters and for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An asynchronous event for the program.
    Async(AsyncEventKind),
    /// The queue pair has a new state. [`QpState::Reset`] and [`QpState::Err`] void the accesses in progress: the
    /// adapter ends them without effect.
    State(QpState),
    /// The acknowledgement timeout has expired.
    AckTimeout,
    /// Packets are retransmitted from this one on.
    GoBack(Psn),
    /// The peer has no receive posted.
    NotReady,
    /// A request arrived whose predecessor is missing.
    OutOfSequence(Psn),
    /// The queue pair notified its peer that the peer's packets met congestion.
    CnpSent,
    /// The peer notified this queue pair that its packets met congestion.
    CnpReceived,
}

/// The environment of a queue pair: its memory, its queues, its clock and its link.
///
/// `S` is a posted send request, `R` a posted receive: they identify the memory of their elements, and their
/// completion.
pub trait Adapter<S, R> {
    /// Gathers a packet's payload and sends the packet to the peer, or a datagram to the destination in its request. A
    /// packet that cannot be delivered is lost; this is not an error.
    ///
    /// # Errors
    /// Returns an error if the payload must not be read; then nothing is sent.
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, S>) -> Result<(), AccessDenied>;

    /// Returns whether the first `len_bytes` of a send request's elements permit the access `need`.
    fn check(&self, send: &S, len_bytes: u64, need: Access) -> bool;

    /// Stores response data into the elements of a READ or atomic before it returns.
    ///
    /// # Errors
    /// Returns an error if the elements must not be written; then nothing is stored.
    fn scatter(&mut self, send: &S, offset: u64, data: &[u8]) -> Result<(), AccessDenied>;

    /// Takes the next posted receive and returns its length in bytes. Returns `None` if there is none, or if it is
    /// shorter than `len_bytes_min`.
    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(R, u64)>;

    /// Returns whether the peer may access a region.
    fn permits(&self, target: &Reth, need: Access) -> bool;

    /// Places received payload.
    fn place(&mut self, token: Token, to: PlacementTarget<'_, R>, payload: &[u8]) -> AccessOutcome;

    /// Prepares to read a region for a READ. [`Payload::Region`] is used after this has completed.
    fn prepare_read(&mut self, token: Token, target: &Reth) -> AccessOutcome;

    /// Executes an atomic operation and returns the old value.
    fn atomic(&mut self, token: Token, target: &AtomicEth) -> AccessOutcome<u64>;

    /// Ends a send request. The adapter adds its `wr_id`, and generates no completion for a successful request that is
    /// not signalled.
    fn sent(&mut self, send: S, wc: Wc);

    /// Ends a receive. The adapter adds its `wr_id`.
    fn received(&mut self, receive: R, wc: Wc, is_solicited: bool);

    /// Flushes the receives of the queue pair's own queue; those of a shared receive queue stay.
    fn flush_receives(&mut self);

    /// Reports an event.
    fn event(&mut self, event: Event);

    /// Returns the time in nanoseconds since an arbitrary start.
    fn now_ns(&self) -> u64;

    /// Restarts a timer, which expires after `after_ns` ([`crate::Qp::timed_out`]); `None` stops it.
    fn set_timer(&mut self, timer: Timer, after_ns: Option<u64>);
}

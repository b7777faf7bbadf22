//! What the transport asks of the channel adapter that it is part of.

use farcall_verbs::{Access, AsyncEventKind, QpState, Wc};

use crate::packet::{AtomicEth, Packet, Reth};
use crate::psn::Psn;

/// A memory access of the responder. Tokens of one queue pair are never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

/// How a memory access of the responder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessed<T = ()> {
    /// It is done.
    Done(T),
    /// The key, its bounds or its rights do not allow it.
    Refused,
    /// It is under way. The adapter tells how it ended with [`crate::Qp::accessed`].
    Pending,
}

/// Memory that must not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key, its bounds or its rights do not allow the access")]
pub struct Refused;

/// The payload of a packet that is sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a, S> {
    /// No bytes.
    None,
    /// Bytes of a send request's elements.
    Send {
        /// The request, as it was posted.
        send: &'a S,
        /// Where the bytes begin in the message.
        offset: u64,
        /// How many.
        len_bytes: u64,
    },
    /// Bytes of a region that a READ names.
    Region(Reth),
}

/// Where payload that came in goes.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a, R> {
    /// Into a receive, so many bytes behind its beginning.
    Receive(&'a R, u64),
    /// Into a receive, behind the [`GRH_BYTES`] that the adapter fills with the route header.
    Datagram(&'a R),
    /// Into the memory that a WRITE names, so many bytes behind its beginning.
    Region(Reth, u64),
}

/// Bytes in front of a received datagram (`struct ibv_grh`).
pub const GRH_BYTES: u64 = 40;

/// A timer of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Waits for an acknowledgement.
    Ack,
    /// Waits until a peer that had no receive may have one.
    Rnr,
    /// Waits until the rate allows the next packet.
    Pace,
}

impl Timer {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 3] = [Self::Ack, Self::Rnr, Self::Pace];
}

/// What happened, for the owner of the queue pair, for counters and for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An asynchronous event for the program.
    Async(AsyncEventKind),
    /// The queue pair has a new state. With [`QpState::Reset`] and [`QpState::Err`], accesses under way are void: the
    /// adapter ends them without effect.
    State(QpState),
    /// No acknowledgement came in time.
    AckTimeout,
    /// Packets are sent again, from this one on.
    GoBack(Psn),
    /// The peer has no receive.
    NotReady,
    /// A request came whose predecessor is missing.
    OutOfSequence(Psn),
    /// The peer is told that its packets met congestion.
    CongestionTold,
    /// The peer tells that packets of this pair met congestion.
    CongestionNotified,
}

/// The surroundings of a queue pair: its memory, its queues, its clock and its link.
///
/// `S` is a posted send request, `R` a posted receive: where its bytes are, and how its completion is told.
pub trait Adapter<S, R> {
    /// Gathers a packet's payload and sends the packet to the peer; a datagram to where its request says. A packet that
    /// cannot be delivered is lost: that is no error.
    ///
    /// # Errors
    /// If the payload must not be read; then nothing is sent.
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, S>) -> Result<(), Refused>;

    /// Whether the first `len_bytes` of a send request's elements allow `need`.
    fn check(&self, send: &S, len_bytes: u64, need: Access) -> bool;

    /// Stores an answer's data into the elements of a READ or atomic, now.
    ///
    /// # Errors
    /// If the elements must not be written; then nothing is stored.
    fn scatter(&mut self, send: &S, offset: u64, data: &[u8]) -> Result<(), Refused>;

    /// Takes the next posted receive and tells its length in bytes; `None` if there is none, or it is shorter than
    /// `len_bytes_min`.
    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(R, u64)>;

    /// Whether a region may be accessed by the peer.
    fn permits(&self, target: &Reth, need: Access) -> bool;

    /// Places payload that came in.
    fn place(&mut self, token: Token, to: Place<'_, R>, payload: &[u8]) -> Accessed;

    /// Prepares to read a region for a READ; [`Payload::Region`] follows once this is done.
    fn prepare_read(&mut self, token: Token, target: &Reth) -> Accessed;

    /// Executes an atomic operation, and gives the value from before.
    fn atomic(&mut self, token: Token, target: &AtomicEth) -> Accessed<u64>;

    /// A send request is over. The adapter adds its `wr_id`, and tells nobody if it is a success that was not
    /// signalled.
    fn sent(&mut self, send: S, wc: Wc);

    /// A receive is over. The adapter adds its `wr_id`.
    fn received(&mut self, receive: R, wc: Wc, is_solicited: bool);

    /// Ends the receives in the pair's own queue as flushed; those of a shared queue stay.
    fn flush_receives(&mut self);

    /// Something happened.
    fn event(&mut self, event: Event);

    /// The time, in nanoseconds since some beginning.
    fn now_ns(&self) -> u64;

    /// Starts a timer anew, to end after a time ([`crate::Qp::timed_out`]); `None` stops it.
    fn set_timer(&mut self, timer: Timer, after_ns: Option<u64>);
}

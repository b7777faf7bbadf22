//! The InfiniBand transport: RC, UC and UD queue pairs, and connection management. It contains no clock, no memory and
//! no socket: packets and time come in; packets, memory accesses, completions, events and timers go out. The simulator
//! runs it over virtual links and virtual time.
//!
//! - [`Packet`]: what travels, in the words of the specification's headers (IBA volume 1, chapter 9);
//! - [`codec`]: packets as the bytes of RoCEv2, with their invariant CRC;
//! - [`Qp`]: a queue pair: sequence numbers, acknowledgements, retransmission, responder resources, flush;
//! - [`RateControl`]: how fast a queue pair sends after its peer told of congestion, as DCQCN by default;
//! - [`TokenBucket`]: a bound on how often something may happen;
//! - [`Adapter`]: what a queue pair asks of its surroundings, its one way out;
//! - [`cm`]: connection management, its messages and its state machine.
//!
//! The transport owns no payload. It names a posted request, an offset and a length when it sends, and again when it
//! sends again; what comes in is lent to [`Qp::arrived`] for one call. A memory access of the responder is done at
//! once, refused, or pending until [`Qp::accessed`] tells how it ended; answers and completions wait for it in their
//! order.

#![forbid(unsafe_code)]

mod adapter;
pub mod cm;
pub mod codec;
mod packet;
mod psn;
mod qp;
mod rate_control;
mod token_bucket;

pub use adapter::{Accessed, Adapter, Event, GRH_BYTES, Payload, Place, Refused, Timer, Token};
pub use packet::{Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Reth, Segment, Syndrome};
pub use psn::Psn;
pub use qp::{Fit, Qp, QpConfig, Responded, SendRequest, Work};
pub use rate_control::{Dcqcn, NewRateControl, RateBounds, RateControl, dcqcn};
pub use token_bucket::TokenBucket;

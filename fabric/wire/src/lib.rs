//! The InfiniBand transport: RC, UC and UD queue pairs, and connection management. It contains no clock, memory or
//! socket: packets and time go in; packets, memory accesses, completions, events and timers come out. The simulator
//! runs it over virtual links in virtual time.
//!
//! - [`Packet`]: packets with the header fields of the specification (IBA volume 1, chapter 9);
//! - [`codec`]: encoding of packets for RoCEv2, with their invariant CRC;
//! - [`Qp`]: a queue pair: sequence numbers, acknowledgements, retransmission, responder resources, flush;
//! - [`RateControl`]: sending rate of a queue pair after congestion notifications, DCQCN by default;
//! - [`TokenBucket`]: a rate limit;
//! - [`Adapter`]: the interface of a queue pair to its environment;
//! - [`cm`]: connection management, its messages and its state machine.
//!
//! The transport stores no payload. For each transmission and retransmission it names a posted request, an offset and a
//! length. Received payload is borrowed for one call of [`Qp::arrived`]. A memory access of the responder completes at
//! once, is refused, or is pending until [`Qp::accessed`] reports its outcome. Responses and completions wait for it in
//! their order.

#![forbid(unsafe_code)]

mod adapter;
pub mod cm;
pub mod codec;
mod packet;
mod psn;
mod qp;
mod rate_control;
mod token_bucket;

pub use adapter::{
    AccessDenied, AccessOutcome, Adapter, Event, GRH_BYTES, Payload, PlacementTarget, Timer, Token,
};
pub use packet::{Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Reth, Segment, Syndrome};
pub use psn::Psn;
pub use qp::{Fit, Qp, QpConfig, Responded, SendRequest, Work};
pub use rate_control::{Dcqcn, NewRateControl, RateBounds, RateControl, dcqcn};
pub use token_bucket::TokenBucket;

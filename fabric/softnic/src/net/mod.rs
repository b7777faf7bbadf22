//! The RoCEv2 transport between hosts: UDP datagrams on port 4791.
//!
//! The protocol is `farcall_wire`'s, the same that the simulator runs; here are its memory, its clock and its link.
//! The GID decides at RTR which transport a pair uses. A process has one port ([`port`]): a socket that opens when the
//! first message leaves for another host, and one lock for everything that packets cause ([`state`]). The processes of
//! a user share the port ([`slots`]).
//!
//! A thread that polls a completion queue looks for packets once in a microsecond, and the service thread leaves them
//! to it meanwhile; the polling thread looks sooner if it has found that it waits for something else. The service
//! thread takes packets in for owners that sleep. One look takes in a batch by one system call, acknowledges the batch
//! once, and sends what follows as a batch. Each packet is copied once, and its CRC is computed over the copy. Packets
//! of one length to one queue pair are a *train*: one message to the kernel, which splits it as late as it can, and
//! one message from it (`company.rs`).
//!
//! Marks of congestion arrive beside packets. `farcall_wire` notifies the sender, which slows down by its rate control.
//!
//! What comes in was written by strangers: each packet's CRC, lengths, addresses, numbers and keys are checked, and
//! what does not hold is dropped and counted ([`counters`]).

mod batch;
mod company;
mod control;
mod counters;
mod crc;
mod datagrams;
mod ecn;
mod faults;
mod management;
mod management_claim;
pub(crate) mod memory;
mod nic;
mod owner;
mod pair;
mod path;
mod peer_port;
mod port;
mod post;
mod slots;
mod socket;
mod sources;
mod state;
mod steering;
mod timers;
mod train_pause;

pub use management::{Management, ManagementDatagram};

pub(crate) use datagrams::{Datagram, NetDatagrams, forget, listen, open};
pub(crate) use pair::{NetPair, PairParts};
pub(crate) use path::Path;

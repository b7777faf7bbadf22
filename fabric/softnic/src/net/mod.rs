//! The RoCEv2 way between hosts: UDP datagrams on port 4791.
//!
//! The transport is `farcall_wire`'s, the same that the simulator runs; here are its memory, its clock and its link. A
//! process has one port ([`port`]): a socket that opens when something first goes to another host, and one lock, under
//! which everything happens that packets cause ([`state`]). The processes of a user share it ([`slots`]). Who polls a
//! completion queue looks for packets, at most once in a while; for owners who sleep the service thread does.
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

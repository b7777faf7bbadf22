//! The RoCEv2 transport between hosts: UDP datagrams on port 4791.
//!
//! The protocol is that of `farcall_wire`, which the simulator runs, too; this module provides its memory, its clock
//! and its link. The GID selects the transport of a queue pair at RTR. A process has one port ([`port`]): a socket that
//! is opened when the first message to another host is sent, and one lock for all effects of packets ([`state`]). The
//! processes of a user share the port ([`slots`]).
//!
//! A thread that polls a completion queue polls the port for packets once in a microsecond, and the service thread then
//! leaves them to it. The polling thread polls more often if it has found that it waits for something else. The service
//! thread handles packets for application threads that sleep. One poll receives a batch of packets by one system call,
//! acknowledges the batch once, and sends the resulting packets as a batch. Each packet is copied once, and its CRC is
//! computed over the copy. Packets of one length to one queue pair form a *GSO batch* (a "train" in names): one message
//! to the kernel, which splits it as late as possible, and one message from it (`company.rs`).
//!
//! ECN marks are delivered with the packets. `farcall_wire` notifies the sender, whose rate control slows it down.
//!
//! Received packets are untrusted: the CRC, lengths, addresses, numbers and keys of each are checked, and invalid
//! packets are dropped and counted ([`counters`]).

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

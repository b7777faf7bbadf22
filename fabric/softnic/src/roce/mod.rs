//! The RoCEv2 transport between hosts: UDP datagrams on port 4791.
//!
//! The protocol is that of `farcall_wire`, which the simulator runs, too; this module provides its memory, its clock
//! and its link. The GID selects the transport of a queue pair at RTR. A process has one port ([`port`]): a socket that
//! is opened when the first message to another host is sent, and one lock for all effects of packets ([`state`]). The
//! processes of a user share the port ([`shared_port`]).
//!
//! A thread that polls a completion queue polls the port for packets once in a microsecond, and the service thread then
//! leaves them to it. The polling thread polls more often if it has found that it waits for something else. The service
//! thread handles packets for application threads that sleep. One poll receives a batch of packets by one system call,
//! acknowledges the batch once, and sends the resulting packets as a batch. Each packet is copied once, and its CRC is
//! computed over the copy. Packets of one length to one queue pair form a *GSO batch* (a "train" in names of counters):
//! one message to the kernel, which splits it as late as possible, and one message from it (`gso.rs`).
//!
//! ECN marks are delivered with the packets. `farcall_wire` notifies the sender, whose rate control slows it down.
//!
//! Received packets are untrusted: the CRC, lengths, addresses, numbers and keys of each are checked, and invalid
//! packets are dropped and counted ([`counters`]).

mod adapter;
mod cmsg;
mod counters;
mod crc;
mod datagrams;
mod ecn;
mod faults;
mod gro_pause;
mod gso;
mod mad_queue;
mod management;
mod management_claim;
pub(crate) mod memory;
mod path;
mod peer_port;
mod poll_responsibility;
mod port;
mod post;
mod qp;
mod qp_context;
mod rx_queues;
mod send_batch;
mod send_sockets;
mod shared_port;
mod socket;
mod sources;
mod state;
mod steering;
mod timers;

pub use mad_queue::ManagementDatagram;
pub use management::Management;

pub(crate) use datagrams::{Datagram, RoceDatagrams, discard, listen, open};
pub(crate) use path::Path;
pub(crate) use qp::{RoceQp, RoceQpResources};

//! How processes of one host find each other and hand over memory.
//!
//! A queue pair number is a *block* (upper 12 bits) and an index in it. A process owns a block by being bound to the
//! block's Unix socket, which the kernel gives to one process at a time and takes back when it dies; so a number leads
//! to its process without pids, files in /dev/shm or a daemon. Over that socket a peer asks for what it was granted:
//! a queue pair's inbound segment, a region.

mod access;
mod address;
mod server;
mod socket;
mod trust;
mod wire;

pub(crate) use access::ACCESS_BYTES;
pub(crate) use address::{BLOCK_QPS, Block, block_of, claim_block, gid, socket_address};
pub use address::{admit_group, socket_directory};
pub(crate) use server::{Client, answer};
pub(crate) use socket::{has_died, peer_pidfd, recv_frame, send_frame};
pub(crate) use trust::{Kinship, judge};
pub use trust::{check_peer, configured_group};
pub use wire::fuzz_frame;
pub(crate) use wire::{Access, Operation, Reach, Reply, ReplyBody, Request, RequestBody, Violation, refusal};

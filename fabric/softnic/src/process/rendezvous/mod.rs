//! Discovery of processes of one host, and transfer of memory between them.
//!
//! A queue pair number consists of a *block* (upper 12 bits) and an index in it. A process owns a block by holding the
//! lock of the block's Unix socket. The kernel grants the lock to one process at a time and releases it when the
//! process exits, so a number leads to its process without pids or a daemon. The sockets are in a directory of the
//! user's own, or in one that several users or containers share. Over the socket a peer requests grants: a queue pair's
//! inbound segment, a region.

mod address;
mod authorization;
mod directory;
mod protocol;
mod socket;

pub(crate) use address::block_of;
pub(crate) use address::gid;
pub use address::rendezvous_path;
pub(super) use address::{
    BLOCK_QPS, Block, claim_block, is_published_address, is_reachable_by_shm, socket_address,
};
pub(crate) use authorization::{TrustLevel, authorize_peer, authorize_user, is_own_user};
pub use authorization::{check_peer, configured_group};
pub use directory::{admit_group, rendezvous_directory, socket_directory};
pub use protocol::fuzz_frame;
pub(crate) use protocol::{
    Access, CqLocation, Operation, Reach, Refusal, RegionGrant, Reply, ReplyBody, Request, RequestBody,
    Violation,
};
pub(crate) use socket::{MAX_FDS, recv_frame, send_frame, wait_for_frame};
pub(super) use socket::{accepts_frames, has_exited, peer_pidfd};

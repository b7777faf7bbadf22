//! The client: an address space of pages over slabs of several nodes.
//!
//! 1. *A request is cut into operations* on one page each. One operation at a time has a page; the next one waits
//!    (`engine/requests.rs`). Whole pages that lie together, and that nothing else concerns, go together, by one
//!    request for each replica (`engine/runs.rs`). If that fails, or a page of it is wrong, they go one by one.
//! 2. *Slabs are requested* if the extent has none: of two nodes chosen at random, the one with the larger share free
//!    (`engine/upkeep.rs`). The node registers memory for each grant, so each grant has its own key, and names it in
//!    its reply. Nodes have no part in what follows.
//! 3. *A write stores the page* to every replica, by WRITEs of one session a node (`engine/operation/store.rs`). When
//!    all replicas have it, the client keeps the page's checksum, and the request is over. The client waits for a
//!    replica that is out of reach until it is back or given up.
//! 4. *A read fetches the page* from one replica and compares checksums. If they differ, it reads the next replica, and
//!    repairs the wrong one.
//! 5. *The upkeep* replaces replicas that are lost or have to leave. A new replica gets every write from its first
//!    moment, and copies of all that was written before, page by page, as operations like others.
//! 6. *A lease that is not renewed* ends at the node: queue pairs are closed, registrations end and wait for accesses,
//!    the memory returns to the system; only then the slab counts as free.
//!
//! # Volumes
//!
//! The nodes of a volume keep slabs and notes when the lease has ended. The next client *claims* the volume
//! (`claim.rs`): it asks all nodes, judges whether those that answer know the newest state, has them grant it under a
//! higher epoch, and reads the notes of all members (`notes.rs`). While it runs, all members have the checksum of each
//! page before the page is stored, and the place of each replica before anything is stored there (`engine/noting.rs`).
//! A page that may or may not have been stored is decided when it is first touched, by reading all its replicas.
//! `engine/members.rs` decides with which nodes the volume goes on; a node that joins or returns is taken in meanwhile
//! (`engine/newcomer.rs`).

mod buffers;
mod claim;
mod config;
mod control;
mod counters;
mod donor;
mod endpoint;
mod engine;
mod extent;
mod history;
mod keep;
mod notes;
mod pages;
mod remote;
mod space;
mod spill;

/// Pages of one piece of a long request: as many as one of 1 MiB has.
const PIECE_PAGES: usize = 256;

pub use config::{
    ClientConfig, Counts, DonorStatus, Ended, IoError, LinkStatus, OpenError, PAGE_BYTES, Refused, Request,
    SpaceStatus, Takeover, VolumeConfig, WINDOW_BYTES, Work,
};
pub use control::call_node;
pub use donor::CallFailed;
pub use endpoint::MemoryEndpoint;
pub use engine::Engine;
pub use history::MarkHistory;
pub use remote::RemoteMemory;

//! The client: an address space of pages over slabs of several nodes.
//!
//! 1. *A request is split into operations* on one page each. At most one operation holds a page; later ones wait for
//!    it (`engine/requests.rs`). Consecutive full pages that need no special treatment form a run, which needs one I/O
//!    request per replica (`engine/runs.rs`). If a run fails, or one of its pages is wrong, those pages continue
//!    singly.
//! 2. *Slabs are requested* if the extent has none: of two nodes chosen at random, from the one with the larger free
//!    share (`engine/maintenance.rs`). The node registers memory for each grant. Each grant therefore has its own key,
//!    which is in the reply. Nodes take no part in the steps that follow.
//! 3. *A write stores the page* in every replica, by WRITEs over one session per node (`engine/operation/store.rs`).
//!    When all replicas have it, the client records the checksum of the page, and the request completes. For an
//!    unreachable replica the client waits until the replica is reachable again or is dropped.
//! 4. *A read fetches the page* from one replica and compares checksums. If they differ, it reads the next replica and
//!    repairs the wrong one.
//! 5. *Maintenance* replaces replicas that are lost or must leave their node. A new replica receives every write from
//!    its creation on, and copies of all earlier writes, page by page, by operations like others.
//! 6. *A lease that is not renewed* ends at the node: the node closes queue pairs, revokes registrations, which waits
//!    for accesses in progress, and returns the memory to the kernel. Only then does the slab count as free.
//!
//! # Volumes
//!
//! The nodes of a volume retain slabs and metadata when the lease has ended. The next client *claims* the volume
//! (`claim.rs`). It queries all nodes, decides whether those that reply have the newest state, requests grants from
//! them under a higher epoch, and reads the metadata of all members (`volume_metadata.rs`). While the client runs, it
//! writes the checksum of each page to all members before it stores the page, and the location of each replica before
//! it stores anything there (`engine/metadata.rs`). A page that may or may not have been stored is *uncertain*: the
//! first access to it reads all its replicas. `engine/members.rs` determines the nodes with which the volume continues.
//! A node that joins or returns is added while the volume is in use (`engine/joining_node.rs`).

mod buffers;
mod claim;
mod config;
mod control;
mod counters;
mod endpoint;
mod engine;
mod extent;
mod history;
mod node_client;
mod pages;
mod recovery_file;
mod remote;
mod space;
mod spill;
mod volume_metadata;

/// Maximum number of pages of one part of a long request: 1 MiB.
const PART_PAGES: usize = 256;

pub use config::{
    ClientConfig, CompletedRequest, Counts, IoError, LinkStatus, MemoryNodeStatus, OpenError, PAGE_BYTES,
    Request, SpaceStatus, SubmitError, Takeover, VolumeConfig, WINDOW_BYTES, Work,
};
pub use control::call_node;
pub use endpoint::MemoryEndpoint;
pub use engine::Engine;
pub use history::ViewHistory;
pub use node_client::NodeCallError;
pub use remote::RemoteMemory;

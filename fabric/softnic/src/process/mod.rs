//! State that the device needs regardless of the transport: this process and its memory, peer processes, detection of
//! their exit, and forks.
//!
//! Nothing here depends on queue pairs or completion queues. A transport implements [`TransportBackend`]: `process`
//! calls it when a process has exited, and to handle the requests of peers.
//!
//! # Discovery
//!
//! A queue pair number contains a block number. The process that owns the block listens on a Unix socket of that name,
//! in a directory of the user's own or in one that containers or users share (`farcall_shm::private_runtime_dir`,
//! `rendezvous/directory.rs`). The kernel identifies each process to the other before anything else. The process
//! replies later, and no thread waits for the reply: the service thread continues the requests that need it. Memory is
//! passed as descriptors. Nothing depends on names in `/dev/shm`, on pids or on a common pid namespace.
//!
//! # Exit of a peer
//!
//! A process can be killed, or stopped, between any two instructions.
//!
//! - Every process holds a pidfd of every peer. Its service thread, which blocks in `epoll`, detects the exit, marks
//!   the peer as exited and calls the transport (`liveness.rs`), which announces all queue pairs connected to the peer
//!   to their completion queues. The state of the socket is not used: a forked child may still hold it open.
//! - The next poll of each application thread delivers what the peer had published: published records are complete, and
//!   nothing else exists. Then requests that wait for the peer end with `RETRY_EXC_ERR`, the queue pair enters the
//!   error state, and posted requests are flushed, as on an RNIC.
//! - The hazard of an exited process is ignored. A *stopped* peer has not exited: requests to it time out (after at
//!   least five seconds if its process must reply first, because machines are busy: `shm_transport/qp/wait_queue.rs`),
//!   and memory that it may access is set aside.
//! - A forked child has private copies of all shared memory, and holds no descriptor that other processes listen to.
//!   The objects that it inherits fail every call (`fork.rs`); it may open the device again.

pub(crate) mod addresses;
mod clients;
mod fork;
mod gid_table;
mod handshake;
mod interned;
mod liveness;
pub(crate) mod local_gids;
mod maps;
mod peer;
mod peers;
pub(crate) mod protection;
mod qpn_table;
pub(crate) mod regions;
mod registry;
pub(crate) mod rendezvous;
mod requests;
mod route_type;
mod service_thread;
mod service_work;
pub(crate) mod shared_remap;
mod waker;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farcall_verbs::Access;

pub(crate) use clients::Client;
pub(crate) use fork::INSTANCE;
pub(crate) use gid_table::{Entry, GidTable};
pub(crate) use handshake::{PeerHandshake, is_no_such_process};
pub(crate) use interned::{KernelObjectId, intern};
pub(crate) use liveness::ProcessLiveness;
pub(crate) use peer::Peer;
pub(crate) use qpn_table::{QpnMap, QpnTable};
pub(crate) use registry::{Process, gid_entries};
pub(crate) use requests::{PeerReply, ReplyInterest};
pub(crate) use service_thread::{FdHandler, FdRegistration, is_service_thread, start};
pub(crate) use service_work::ServiceWork;
pub(crate) use waker::Waker;

use rendezvous::Request;

/// Permissions that allow peers to access memory.
pub(crate) const REMOTE_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A transport for messages with peers, as seen by the process layer.
pub(crate) trait TransportBackend: Send + Sync {
    /// Returns the process state of this transport.
    fn process(&self) -> &Process;

    /// Called when a connected peer process, or one that sends to this process, has exited. `instance` identifies it
    /// uniquely. Called by the service thread, once for each connection with it.
    fn on_process_exit(&self, instance: u64);

    /// Handles a request that is specific to the transport.
    ///
    /// # Errors
    /// Returns an error if the client must be disconnected.
    fn answer(&self, client: &Arc<Client>, request: &Request, fds: Vec<OwnedFd>) -> rustix::io::Result<()>;

    /// Processes deliveries of peers for application threads that sleep.
    fn service_sleeping_cqs(&self);
}

//! What the device needs whichever transport carries messages: this process and its memory, the processes that it
//! meets, their deaths, and forks.
//!
//! Nothing here knows a queue pair or a completion queue. A transport implements [`Way`]: `life` calls it when a
//! process has ended, and to answer the requests of peers.
//!
//! # Finding each other
//!
//! A queue pair number contains a block number. The process that owns the block listens on a Unix socket of that name,
//! in a directory of the user's own or in one that containers or users share (`farcall_shm::own_directory`,
//! `rendezvous/place.rs`). The kernel identifies each process to the other before anything else. The process answers
//! later, and no thread waits for the answer: the service thread continues the requests that need it. Memory is handed
//! over as descriptors. Nothing depends on names in `/dev/shm`, on pids or on a common pid namespace.
//!
//! # The death of a peer
//!
//! A process can be killed, or stopped, between any two instructions.
//!
//! - Every process holds a pidfd of every peer. Its one service thread, which blocks in `epoll`, sees the death, marks
//!   the peer dead and calls the transport (`death.rs`), which announces all pairs that are connected to the peer to
//!   their owners. A socket that hangs up does not count as a death: a forked child may still hold it.
//! - The next poll of each owner delivers what the dead peer had published: published records are whole, and nothing
//!   else exists. Then requests that wait for the peer end with `RETRY_EXC_ERR`, the pair enters the error state, and
//!   posted requests are flushed, as on an RNIC.
//! - A hazard of a dead process counts for nothing. A *stopped* peer is not dead: requests to it end by their own
//!   time-out (at least five seconds where its process must answer first, because machines are busy:
//!   `host/qp/wait_queue.rs`), and memory that it may access is set aside.
//! - A forked child has private copies of all that was shared, and holds nothing that others listen to. The objects
//!   that it inherits fail every call (`fork.rs`); it may open the device anew.

pub(crate) mod addresses;
mod clients;
mod death;
mod fork;
mod gid_table;
pub(crate) mod gids;
mod held_once;
mod maps;
mod meeting;
pub(crate) mod moved_memory;
mod numbers;
mod peer;
mod process;
pub(crate) mod protection;
pub(crate) mod regions;
pub(crate) mod rendezvous;
mod requests;
mod retry;
mod route_type;
mod service;
mod waker;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farcall_verbs::Access;

pub(crate) use clients::Client;
pub(crate) use death::Lifetime;
pub(crate) use gid_table::{Entry, GidTable};
pub(crate) use held_once::{Identity, held_once};
pub(crate) use meeting::{Meeting, is_nobody};
pub(crate) use numbers::{ByNumber, Numbers};
pub(crate) use peer::Peer;
pub(crate) use process::{INSTANCE, Process, gid_entries};
pub(crate) use requests::{Answer, Interest};
pub(crate) use retry::Retry;
pub(crate) use service::{Served, Watching, is_service_thread, start};
pub(crate) use waker::Waker;

use rendezvous::Request;

/// Permissions that let peers at memory.
pub(crate) const REMOTE_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A way of exchanging messages with peers, as the processes' lives see it.
pub(crate) trait Way: Send + Sync {
    /// The process that it is of.
    fn process(&self) -> &Process;

    /// A process that we met, or that sends to us, has ended; `instance` tells it from all others. Called by the
    /// service thread, once for each connection with it.
    fn process_ended(&self, instance: u64);

    /// Answers a request that only the way understands.
    ///
    /// # Errors
    /// If the client is not to be served any more.
    fn answer(&self, client: &Arc<Client>, request: &Request, fds: Vec<OwnedFd>) -> rustix::io::Result<()>;

    /// Goes on with what peers have given to owners who sleep.
    fn look_after_sleepers(&self);
}

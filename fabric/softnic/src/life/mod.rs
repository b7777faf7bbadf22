//! What the device needs whatever way messages take: this process and its memory, the processes that it meets, their
//! deaths, and forks.
//!
//! Nothing here knows a queue pair or a completion queue. Who does is a [`Way`]: it is told when a process has ended,
//! and is asked to answer what peers request.

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

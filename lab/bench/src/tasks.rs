//! Tasks that a peer process can run.

use crate::baseline::Answer;
#[cfg(feature = "verbs")]
use crate::experiments::calls::CallClient;
use crate::experiments::clients::ClientProcess;
use crate::experiments::kv_main::StoreClient;
use crate::experiments::own_syscalls::TraceParent;
#[cfg(feature = "verbs")]
use crate::files::EmptyFiles;
#[cfg(feature = "verbs")]
use crate::grpc::{ClientPoolServer, GrpcServer, YcsbServer};
use crate::peer::{Order, PeerError, PeerTask};
#[cfg(feature = "verbs")]
use crate::remio::MemoryServer;
#[cfg(feature = "verbs")]
use crate::rnic::{Initiator, Issuer, OneOfMany, Target, echo::EchoServer};
#[cfg(feature = "verbs")]
use crate::streams;

/// Runs the task that the environment describes, until this process is killed or the other end exits. Implements the
/// hidden subcommand completely.
///
/// # Errors
/// Returns an error if this process was not started by [`crate::peer::PeerLauncher`], or if a system call fails.
pub fn run_peer() -> Result<(), PeerError> {
    let order = Order::of_this_process()?;
    match order.kind.as_str() {
        Answer::KIND => order.run::<Answer>(),
        TraceParent::KIND => order.run::<TraceParent>(),
        #[cfg(feature = "verbs")]
        Target::KIND => order.run::<Target>(),
        #[cfg(feature = "verbs")]
        Initiator::KIND => order.run::<Initiator>(),
        #[cfg(feature = "verbs")]
        Issuer::KIND => order.run::<Issuer>(),
        #[cfg(feature = "verbs")]
        ClientProcess::<OneOfMany>::KIND => order.run::<ClientProcess<OneOfMany>>(),
        #[cfg(feature = "verbs")]
        EchoServer::KIND => order.run::<EchoServer>(),
        ClientProcess::<StoreClient>::KIND => order.run::<ClientProcess<StoreClient>>(),
        #[cfg(feature = "verbs")]
        ClientProcess::<CallClient>::KIND => order.run::<ClientProcess<CallClient>>(),
        #[cfg(feature = "verbs")]
        streams::EchoServer::KIND => order.run::<streams::EchoServer>(),
        #[cfg(feature = "verbs")]
        streams::Server::KIND => order.run::<streams::Server>(),
        #[cfg(feature = "verbs")]
        GrpcServer::KIND => order.run::<GrpcServer>(),
        #[cfg(feature = "verbs")]
        ClientPoolServer::KIND => order.run::<ClientPoolServer>(),
        #[cfg(feature = "verbs")]
        YcsbServer::KIND => order.run::<YcsbServer>(),
        #[cfg(feature = "verbs")]
        MemoryServer::KIND => order.run::<MemoryServer>(),
        #[cfg(feature = "verbs")]
        EmptyFiles::KIND => order.run::<EmptyFiles>(),
        _ => Err(PeerError::Task("of another version")),
    }
}

/// Returns whether a server half accepts tasks of this kind from another host: only the serving ends of measurements.
#[cfg(feature = "verbs")]
pub(crate) fn is_done_for_others(kind: &str) -> bool {
    [Target::KIND, Issuer::KIND, EchoServer::KIND, MemoryServer::KIND, streams::Server::KIND].contains(&kind)
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn is_done_for_others(_kind: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test by itself: entry point of the peers that tests start. In an ordinary test run there is no task,
    /// which the error shows.
    #[test]
    fn entry_of_the_peer_process() {
        match run_peer() {
            Err(PeerError::Task(what)) => assert_eq!(what, "not set"),
            result => result.unwrap(),
        }
    }
}

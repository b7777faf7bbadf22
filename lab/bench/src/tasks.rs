//! Tasks that a peer process can run.

use crate::baseline::Answer;
use crate::experiments::clients::ClientProcess;
use crate::experiments::kv_main::StoreClient;
use crate::experiments::own_syscalls::TraceParent;
use crate::peer::{Order, PeerError, PeerTask};

/// A kind of task, and the function that runs it.
type Task = (&'static str, fn(Order) -> Result<(), PeerError>);

const TASKS: [Task; 3] = [task::<Answer>(), task::<TraceParent>(), task::<ClientProcess<StoreClient>>()];

#[cfg(feature = "verbs")]
mod verbs {
    use super::{Task, task};
    use crate::experiments::calls::CallClient;
    use crate::experiments::clients::ClientProcess;
    use crate::files::EmptyFiles;
    use crate::grpc::{ClientPoolServer, GrpcServer, YcsbServer};
    use crate::remio::MemoryServer;
    use crate::rnic::{Initiator, Issuer, OneOfMany, Target, echo};
    use crate::streams;

    /// Serving ends of measurements, which a server half also runs for another host.
    pub(super) const SERVING: [Task; 5] = [
        task::<Target>(),
        task::<Issuer>(),
        task::<echo::EchoServer>(),
        task::<MemoryServer>(),
        task::<streams::Server>(),
    ];
    pub(super) const OTHERS: [Task; 8] = [
        task::<Initiator>(),
        task::<ClientProcess<OneOfMany>>(),
        task::<ClientProcess<CallClient>>(),
        task::<streams::EchoServer>(),
        task::<GrpcServer>(),
        task::<ClientPoolServer>(),
        task::<YcsbServer>(),
        task::<EmptyFiles>(),
    ];
}
#[cfg(not(feature = "verbs"))]
mod verbs {
    pub(super) const SERVING: [super::Task; 0] = [];
    pub(super) const OTHERS: [super::Task; 0] = [];
}

const fn task<T: PeerTask>() -> Task {
    (T::KIND, Order::run::<T>)
}

/// Runs the task that the environment describes, until this process is killed or the other end exits. Implements the
/// hidden subcommand completely.
///
/// # Errors
/// Returns an error if this process was not started by [`crate::peer::PeerLauncher`], or if a system call fails.
pub fn run_peer() -> Result<(), PeerError> {
    let order = Order::of_this_process()?;
    let mut all = TASKS.iter().chain(&verbs::SERVING).chain(&verbs::OTHERS);
    let (_, run) = all.find(|(kind, _)| *kind == order.kind).ok_or(PeerError::Task("of another version"))?;
    run(order)
}

/// Returns whether a server half accepts tasks of this kind from another host: only the serving ends of measurements.
pub(crate) fn is_done_for_others(kind: &str) -> bool {
    verbs::SERVING.iter().any(|(serving, _)| *serving == kind)
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

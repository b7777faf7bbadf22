//! Several client processes that measure at the same time.

use super::ExperimentError;
use super::env::ExperimentEnv;
use crate::peer::{Peer, PeerError, PeerPlace, PeerTask, receive, send};
use farcall_verbs::with_sources;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Work of a client process.
pub(crate) trait Client: Serialize + DeserializeOwned {
    /// Name of this kind of task.
    const KIND: &'static str;
    /// Result that the client reports.
    type Outcome: Serialize + DeserializeOwned;

    /// Connects and calls `connected`, which returns when all clients are connected; then measures.
    fn run(
        &self,
        connected: impl FnMut() -> Result<(), ExperimentError>,
    ) -> Result<Self::Outcome, ExperimentError>;
}

/// A client as the task of a process of its own.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct ClientProcess<C: Client>(C);

/// Sent when all clients are connected.
#[derive(Serialize, Deserialize)]
struct Begin;

/// Message of a client after it is ready to connect: first that it is connected, then its outcome.
type Said<T> = Result<T, String>;

impl<C: Client> PeerTask for ClientProcess<C> {
    const KIND: &'static str = C::KIND;

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        place.ready()?;
        let outcome = self.0.run(|| {
            send(place.control(), &Said::Ok(()))?;
            Ok(receive::<Begin>(place.control()).map(drop)?)
        });
        send(place.control(), &outcome.map_err(|error| with_sources(&*error)))
    }
}

/// Runs clients in processes of their own, on the client cores in turn. `mark` is called when all are connected, and
/// again when all have ended.
///
/// # Errors
/// Returns an error if a client cannot be started, or fails.
pub(crate) fn run_all<C: Client + Clone, M>(
    env: &ExperimentEnv,
    clients: &[C],
    mut mark: impl FnMut() -> Result<M, PeerError>,
) -> Result<(Vec<C::Outcome>, [M; 2]), ExperimentError> {
    let start = |(number, client): (u32, &C)| {
        env.launcher.start(&ClientProcess(client.clone()), env.core_of_client(number), &[])
    };
    let peers = (0..).zip(clients).map(start).collect::<Result<Vec<_>, _>>()?;
    peers.iter().try_for_each(heard::<()>)?;
    let before = mark()?;
    peers.iter().try_for_each(|peer| send(peer.control(), &Begin))?;
    let outcomes = peers.iter().map(heard).collect::<Result<_, _>>()?;
    Ok((outcomes, [before, mark()?]))
}

fn heard<T: DeserializeOwned>(peer: &Peer) -> Result<T, ExperimentError> {
    Ok(receive::<Said<T>>(peer.control())?.map_err(PeerError::Part)?)
}

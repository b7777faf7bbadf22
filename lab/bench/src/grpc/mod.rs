//! gRPC between two processes of one thread each. The same generated code runs over tonic's transport on TCP, over
//! that transport with streams instead of TCP, and over frames without HTTP/2.

mod clients;
mod load;
mod service;
mod transport;
mod waiting;
mod ycsb;

pub use clients::{Calls, ClientPool, ClientPoolServer, ClientPoolTask, client_pool};
pub use ycsb::{Ycsb, YcsbServer, YcsbTask, ycsb};

use crate::measure::{RoundTrips, pin_thread};
use crate::peer::{self, BothEnds, Meter, PairPlan, PeerError, PeerPlace, PeerTask};
use crate::streams::WaitMode;
use farcall::select::{SelectedNic, Selection};
use farcall::stream::StreamOptions;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct::EchoDirectClient;
use farcall_link::{Nic, WaitStrategy};
pub use load::{CALLS_AT_ONCE, Load, MESSAGE_LEN_BYTES};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use tokio::runtime::Runtime;
use transport::Connected;

/// Transport of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// HTTP/2 over TCP, tonic's default.
    Tcp,
    /// HTTP/2 over a stream.
    Http2,
    /// Frames over a stream, without HTTP/2.
    Native,
    /// The same, with unary methods that bypass tonic's codec at both ends.
    Direct,
    /// Like `Native`, with RR-Compound's wait strategies at both ends; BPEV has one poller at the server. Not
    /// [`WaitMode::Tcp`].
    Waits(WaitMode),
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Http2 => "http2",
            Self::Native => "native",
            Self::Direct => "direct",
            Self::Waits(mode) => return mode.fmt(f),
        })
    }
}

/// Task of the serving process.
#[derive(Debug, Serialize, Deserialize)]
pub struct GrpcServer {
    preset: Preset,
    nic: Selection,
}

fn failed(error: impl fmt::Display) -> PeerError {
    PeerError::Part(error.to_string())
}

fn runtime() -> Result<Runtime, PeerError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)
}

impl Preset {
    /// Returns the stream options of the server's end: it polls as long as it has work, unless the preset specifies
    /// otherwise.
    fn serving(self) -> Result<StreamOptions, PeerError> {
        match self {
            Self::Waits(mode) => waiting::serving(mode, 1, None, StreamOptions::default()),
            _ => Ok(self.calling()),
        }
    }

    /// Returns the stream options of a client's end.
    fn calling(self) -> StreamOptions {
        match self {
            Self::Waits(mode) => waiting::calling(mode, None, StreamOptions::default()),
            _ => StreamOptions::default().waiting(WaitStrategy::Busy),
        }
    }
}

fn open(selection: &Selection) -> Result<Nic, PeerError> {
    Ok(selection.open().map_err(failed)?.nic)
}

impl PeerTask for GrpcServer {
    const KIND: &'static str = "grpc";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        let Self { preset, nic } = self;
        let streams = preset.serving()?;
        runtime()?.block_on(preset.serve(&nic, streams, preset == Preset::Direct, &place))
    }
}

/// Results of a load.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Calls or messages.
    pub trips: RoundTrips,
    /// Processor time of both ends.
    pub cores: BothEnds,
}

/// Measures a load over a new connection to a new server. Pins the calling thread.
///
/// # Errors
/// Returns an error if the other end cannot be started, if a call fails, or if a response is wrong.
pub fn measure(
    preset: Preset,
    load: Load,
    chosen: &SelectedNic,
    plan: &PairPlan,
) -> Result<Measured, PeerError> {
    pin_thread(plan.client_core)?;
    let server = GrpcServer { preset, nic: chosen.selection.clone() };
    let peer = plan.launcher.start(&server, plan.server_core, &[])?;
    let address: SocketAddr = peer::receive(peer.control())?;
    let meter = Meter::start(&peer)?;
    let trips = runtime()?.block_on(async {
        match preset.connect(&chosen.nic, address, preset.calling()).await? {
            Connected::Http2(channel) => {
                load.run(EchoClient::new(channel.clone()), EchoClient::new(channel), plan).await
            }
            Connected::Native(channel) if preset == Preset::Direct => {
                load.run(EchoDirectClient::new(channel.clone()), EchoClient::new(channel), plan).await
            }
            Connected::Native(channel) => {
                load.run(EchoClient::new(channel.clone()), EchoClient::new(channel), plan).await
            }
        }
    })?;
    Ok(Measured { trips, cores: meter.stop()? })
}

#[cfg(test)]
mod tests;

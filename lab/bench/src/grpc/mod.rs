//! gRPC between two processes of one thread each. The same generated code runs over tonic's transport on TCP, over
//! that transport with streams instead of TCP, and over frames without HTTP/2.

mod clients;
mod load;
mod service;
mod waiting;
mod ycsb;

pub use clients::{Calls, ClientPool, ClientPoolServer, ClientPoolTask, client_pool};
pub use ycsb::{Ycsb, YcsbServer, YcsbTask, ycsb};

use crate::measure::{CpuMeter, RoundTrips, pin_thread};
use crate::peer::{self, PairPlan, PeerError, PeerPlace, PeerTask};
use crate::streams::WaitMode;
use farcall::grpc::{Channel, GrpcOptions, Server, Services};
use farcall::select::{SelectedNic, Selection};
use farcall::stream::StreamOptions;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct::{self, EchoDirectClient};
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::http2::{Connector, Incoming};
use farcall_link::{Nic, WaitStrategy};
pub use load::{CALLS_AT_ONCE, Load, MESSAGE_LEN_BYTES};
use serde::{Deserialize, Serialize};
use service::Answers;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server as Http2Server};

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
        runtime()?.block_on(async {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let ready = |address: SocketAddr| {
                place.ready()?;
                peer::send(place.control(), &address)
            };
            let router = || Http2Server::builder().add_service(EchoServer::new(Answers));
            match self.preset {
                Preset::Tcp => {
                    let incoming = TcpIncoming::bind(any).map_err(failed)?.with_nodelay(Some(true));
                    ready(incoming.local_addr().map_err(failed)?)?;
                    router().serve_with_incoming(incoming).await.map_err(failed)
                }
                Preset::Http2 => {
                    let incoming =
                        Incoming::bind(&open(&self.nic)?, any, self.preset.serving()?).map_err(failed)?;
                    ready(incoming.address().map_err(failed)?)?;
                    router().serve_with_incoming(incoming).await.map_err(failed)
                }
                Preset::Native | Preset::Direct | Preset::Waits(_) => {
                    let options = GrpcOptions::default().stream(self.preset.serving()?);
                    let mut server = Server::bind(&open(&self.nic)?, any, options).map_err(failed)?;
                    if self.preset == Preset::Direct {
                        server = server.direct(echo_direct::methods(Arc::new(Answers)));
                    }
                    ready(server.address().map_err(failed)?)?;
                    let services = Services::new().add_service(EchoServer::new(Answers));
                    server.serve(services).await.map(|_never| ()).map_err(failed)
                }
            }
        })
    }
}

async fn http2(
    load: Load,
    channel: tonic::transport::Channel,
    plan: &PairPlan,
) -> Result<RoundTrips, PeerError> {
    let client = EchoClient::new(channel);
    load.run(client.clone(), client, plan).await
}

/// Results of a load.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Calls or messages.
    pub trips: RoundTrips,
    /// Cores used by the client.
    pub client_cores: f64,
    /// Cores used by the server.
    pub server_cores: f64,
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
    let client_meter = CpuMeter::start(std::process::id())?;
    let (server_before, start) = (peer.cpu_time()?, std::time::Instant::now());
    let trips = runtime()?.block_on(async {
        let endpoint = || Endpoint::from_shared(format!("http://{address}")).map_err(failed);
        match preset {
            Preset::Tcp => {
                let channel = endpoint()?.tcp_nodelay(true).connect().await.map_err(failed)?;
                http2(load, channel, plan).await
            }
            Preset::Http2 => {
                let connector = Connector::new(&chosen.nic.clone(), address, preset.calling());
                let channel = endpoint()?.connect_with_connector(connector).await.map_err(failed)?;
                http2(load, channel, plan).await
            }
            Preset::Native | Preset::Direct | Preset::Waits(_) => {
                let options = GrpcOptions::default().stream(preset.calling());
                let nic = chosen.nic.clone();
                let channel = Channel::connect(&nic, address, options).await.map_err(failed)?;
                let client = EchoClient::new(channel.clone());
                if preset == Preset::Direct {
                    load.run(EchoDirectClient::new(channel), client, plan).await
                } else {
                    load.run(client.clone(), client, plan).await
                }
            }
        }
    })?;
    let served = peer.cpu_time()?.saturating_sub(server_before);
    Ok(Measured {
        trips,
        client_cores: client_meter.core_share()?,
        server_cores: served.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9),
    })
}

#[cfg(test)]
mod tests;

//! The client's and the server's end of each transport.

use super::service::Answers;
use super::{Preset, failed, open};
use crate::peer::{self, PeerError, PeerPlace};
use bytes::Bytes;
use farcall::grpc::{Channel, GrpcOptions, Server, Services};
use farcall::select::Selection;
use farcall::stream::StreamOptions;
use farcall_echo::v1::echo_direct;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::http2::{Connector, Incoming};
use farcall_link::Nic;
use http_body::Body as HttpBody;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server as Http2Server};

/// Transport of generated client code.
pub(super) trait Transport:
    GrpcService<
        Body,
        Error: Into<StdError>,
        ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    > + Clone
    + 'static
{
}

impl Transport for Channel {}
impl Transport for tonic::transport::Channel {}

/// A client's channel to the server of a measurement.
pub(super) enum Connected {
    Http2(tonic::transport::Channel),
    Native(Channel),
}

impl Preset {
    /// Connects to a server over this transport.
    pub(super) async fn connect(
        self,
        nic: &Nic,
        address: SocketAddr,
        streams: StreamOptions,
    ) -> Result<Connected, PeerError> {
        let endpoint = || Endpoint::from_shared(format!("http://{address}")).map_err(failed);
        Ok(match self {
            Self::Tcp => Connected::Http2(endpoint()?.tcp_nodelay(true).connect().await.map_err(failed)?),
            Self::Http2 => {
                let connector = Connector::new(nic, address, streams);
                Connected::Http2(endpoint()?.connect_with_connector(connector).await.map_err(failed)?)
            }
            Self::Native | Self::Direct | Self::Waits(_) => {
                let options = GrpcOptions::default().stream(streams);
                Connected::Native(Channel::connect(nic, address, options).await.map_err(failed)?)
            }
        })
    }

    /// Serves echoes over this transport, with unary methods that bypass tonic's codec if `is_direct`. Does not
    /// return unless the server fails.
    pub(super) async fn serve(
        self,
        selection: &Selection,
        streams: StreamOptions,
        is_direct: bool,
        place: &PeerPlace,
    ) -> Result<(), PeerError> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ready = |address: SocketAddr| {
            place.ready()?;
            peer::send(place.control(), &address)
        };
        let router = || Http2Server::builder().add_service(EchoServer::new(Answers));
        match self {
            Self::Tcp => {
                let incoming = TcpIncoming::bind(any).map_err(failed)?.with_nodelay(Some(true));
                ready(incoming.local_addr().map_err(failed)?)?;
                router().serve_with_incoming(incoming).await.map_err(failed)
            }
            Self::Http2 => {
                let incoming = Incoming::bind(&open(selection)?, any, streams).map_err(failed)?;
                ready(incoming.address().map_err(failed)?)?;
                router().serve_with_incoming(incoming).await.map_err(failed)
            }
            Self::Native | Self::Direct | Self::Waits(_) => {
                let options = GrpcOptions::default().stream(streams);
                let mut server = Server::bind(&open(selection)?, any, options).map_err(failed)?;
                if is_direct {
                    server = server.direct(echo_direct::methods(Arc::new(Answers)));
                }
                ready(server.address().map_err(failed)?)?;
                let services = Services::new().add_service(EchoServer::new(Answers));
                server.serve(services).await.map(|_never| ()).map_err(failed)
            }
        }
    }
}

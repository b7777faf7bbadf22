//! Calls between two hosts without an RNIC: streams go over TCP.

#[path = "../../../stream/tests/support/hosts.rs"]
mod ends;

use std::path::Path;
use std::sync::Arc;

use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::{DirectMethods, GrpcOptions};
use farcall_stream::{AsyncStream, StreamOptions, StreamPath};
use tonic::service::Routes;

use super::kinds::all_kinds;
use super::support::service::Behaviour;
use super::support::{Running, Transport, channel, nic, soon, until};
use ends::{End, SERVER, end_of, listens};

/// Transports over streams, each on its own port.
const TRANSPORTS: [Transport; 3] = [Transport::Native, Transport::Http2, Transport::Direct];
/// File that the client creates when it is done.
const DONE: &str = "/run/done";

fn port_of(at: usize) -> std::net::SocketAddr {
    let mut address: std::net::SocketAddr = SERVER.parse().unwrap();
    address.set_port(address.port() + at as u16);
    address
}

#[tokio::test]
async fn calls_of_each_kind_are_answered_between_hosts() {
    match end_of("hosts::calls_of_each_kind_are_answered_between_hosts", &[]) {
        None => {}
        Some(End::Server) => {
            let mut running = Vec::new();
            for (at, transport) in TRANSPORTS.into_iter().enumerate() {
                let service = Behaviour::default();
                let direct = match transport {
                    Transport::Direct => echo_direct::methods(Arc::new(service.clone())),
                    _ => DirectMethods::new(),
                };
                let routes = Routes::new(EchoServer::new(service));
                let options = GrpcOptions::default();
                running.push(Running::start_with(transport, routes, direct, port_of(at), options).await);
            }
            listens();
            until(|| Path::new(DONE).exists()).await;
            for server in running {
                soon(server.stop()).await.unwrap();
            }
        }
        Some(End::Client) => {
            for (at, transport) in TRANSPORTS.into_iter().enumerate() {
                let stream =
                    AsyncStream::connect(&nic(), port_of(at), StreamOptions::default()).await.unwrap();
                assert_eq!(stream.path(), StreamPath::Tcp);
                drop(stream);
                let mut client =
                    EchoClient::new(channel(transport, port_of(at), GrpcOptions::default()).await);
                for bytes in [0, 64, 5_000, 700_000] {
                    soon(all_kinds(&mut client, bytes)).await;
                }
            }
            std::fs::write(DONE, []).unwrap();
        }
    }
}

//! The service for clients on another host, where no RNIC reaches: streams go over TCP.

#[path = "../../../stream/tests/support/hosts.rs"]
mod ends;

use std::path::Path;

use farcall_grpc_kv::{LsmServer, ServerOptions, StoreOptions, Transport};

use crate::calls::exercise;
use crate::support::{http2, native, nic, store, until};
use ends::{End, SERVER, end_of, listens};

/// File that the client creates when it is done.
const DONE: &str = "/run/done";

#[tokio::test]
async fn every_method_is_answered_between_hosts() {
    let listen: std::net::SocketAddr = SERVER.parse().unwrap();
    let mut second = listen;
    second.set_port(listen.port() + 1);
    match end_of("hosts::every_method_is_answered_between_hosts", &[]) {
        None => {}
        Some(End::Server) => {
            let streams = farcall_stream::StreamOptions::default;
            let serve = |transport, listen| {
                let (store, folder) = store(StoreOptions::default());
                (LsmServer::start(store, ServerOptions { transport, listen, threads: 2 }).unwrap(), folder)
            };
            let _native = serve(Transport::Native(nic(), streams()), listen);
            let _http2 = serve(Transport::Http2(nic(), streams()), second);
            listens();
            until(|| Path::new(DONE).exists()).await;
        }
        Some(End::Client) => {
            exercise(native(listen).await).await;
            exercise(http2("http2", second).await).await;
            std::fs::write(DONE, []).unwrap();
        }
    }
}

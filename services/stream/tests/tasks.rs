//! Streams for tokio.
#![cfg(feature = "tokio")]

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use farcall_stream::{AsyncStream, AsyncStreamListener, StreamOptions, StreamPath};
use support::{bytes_at, nic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn pair(options: StreamOptions) -> (AsyncStream, AsyncStream) {
    let mut listener = AsyncStreamListener::bind(&nic(), "127.0.0.1:0", options.clone()).unwrap();
    let address = listener.address().unwrap();
    let client = tokio::spawn(async move { AsyncStream::connect(&nic(), address, options).await.unwrap() });
    let server = listener.accept().await.unwrap();
    (client.await.unwrap(), server)
}

async fn both_ways() {
    for options in [StreamOptions::default(), StreamOptions::default().pollable()] {
        let (client, server) = pair(options).await;
        let all = bytes_at(5, 2_000_000);
        let expected = all.clone();
        // An echo server and a client of two tasks each, which wait for one another.
        let echo = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(server);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let (mut reader, mut writer) = tokio::io::split(client);
        let sender = tokio::spawn(async move {
            writer.write_all(&all).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        assert!(got == expected);
        echo.await.unwrap();
        sender.await.unwrap();
    }
}

#[tokio::test]
async fn bytes_go_both_ways_at_once_on_one_thread() {
    both_ways().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn bytes_go_both_ways_at_once_on_several_threads() {
    both_ways().await;
}

#[tokio::test]
async fn messages_of_many_streams_take_turns() {
    let mut listener = AsyncStreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..20_u64 {
        clients.spawn(async move {
            let mut stream = AsyncStream::connect(&nic(), address, StreamOptions::default()).await.unwrap();
            for round in 0..50 {
                stream.write_u64(client * 1_000 + round).await.unwrap();
                assert_eq!(stream.read_u64().await.unwrap(), client * 1_000 + round + 1);
            }
            stream.shutdown().await.unwrap();
        });
        let mut server = listener.accept().await.unwrap();
        tokio::spawn(async move {
            while let Ok(number) = server.read_u64().await {
                server.write_u64(number + 1).await.unwrap();
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// Two tasks at each end: the reading task must not consume a wake-up of the writing task.
#[test]
fn between_hosts_bytes_go_both_ways_at_once() {
    let Some(end) = hosts::end_of("between_hosts_bytes_go_both_ways_at_once", &[]) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let all = bytes_at(5, 20_000_000);
        match end {
            hosts::End::Server => {
                let mut listener =
                    AsyncStreamListener::bind(&nic(), hosts::SERVER, StreamOptions::default()).unwrap();
                hosts::listens();
                let stream = listener.accept().await.unwrap();
                assert_eq!(listener.accept_counts().over_tcp, 1);
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            }
            hosts::End::Client => {
                let address = hosts::SERVER.parse().unwrap();
                let stream = AsyncStream::connect(&nic(), address, StreamOptions::default()).await.unwrap();
                assert_eq!(stream.path(), StreamPath::Tcp);
                let (mut reader, mut writer) = tokio::io::split(stream);
                let expected = all.clone();
                let sender = tokio::spawn(async move {
                    writer.write_all(&all).await.unwrap();
                    writer.shutdown().await.unwrap();
                });
                let mut got = Vec::new();
                reader.read_to_end(&mut got).await.unwrap();
                assert!(got == expected);
                sender.await.unwrap();
            }
        }
    });
}

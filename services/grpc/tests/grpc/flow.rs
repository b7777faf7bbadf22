//! Many calls at once, slow readers, large messages, limits.

use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::GrpcOptions;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::service::Routes;

use super::support::service::{Behaviour, WAIT, count, message, told};
use super::support::{Running, Transport, channel, over_each, soon, until};

#[tokio::test]
async fn bounds_memory_of_an_unread_stream_and_serves_other_calls() {
    over_each(async |server, service, mut client| {
        let mut unread = Vec::new();
        // With HTTP/2, three of them would exhaust tonic's connection window, and others would wait.
        let count_of_unread = if server.transport.has_frames() { 3 } else { 1 };
        for _ in 0..count_of_unread {
            unread.push(client.repeat(message(vec![1; 16 << 10], 1_000)).await.unwrap().into_inner());
        }
        for at in 0..200 {
            let answer = client.unary(message("between", at)).await.unwrap().into_inner();
            assert_eq!(answer, message("between", at));
        }
        // The windows of the calls, and the data in the rings, buffers and sockets between.
        let produced = count(&service.produced);
        assert!(produced < 500 * count_of_unread, "{produced} messages of 16 KiB were produced for nobody");
        for mut answers in unread {
            for at in 0..1_000 {
                assert_eq!(answers.next().await.unwrap().unwrap().times, at);
            }
            assert!(answers.next().await.is_none());
        }
    })
    .await;
}

#[tokio::test]
async fn a_method_that_does_not_read_stops_its_client_alone() {
    over_each(async |server, service, mut client| {
        if !server.transport.has_frames() {
            // With HTTP/2 the whole connection waits.
            return;
        }
        let mut other = client.clone();
        let produced = std::sync::Arc::clone(&service.produced);
        let endless = tokio_stream::iter(std::iter::repeat_with(move || {
            produced.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            message(vec![1; 16 << 10], 0)
        }));
        let waiting = tokio::spawn(async move { other.collect(told(WAIT, endless)).await });
        until(|| count(&service.begun) == 1).await;
        for at in 0..200 {
            client.unary(message("between", at)).await.unwrap();
        }
        let produced = count(&service.produced);
        assert!(produced < 3_000, "{produced} messages of 16 KiB were produced for nobody");
        waiting.abort();
        until(|| count(&service.dropped) == count(&service.begun)).await;
    })
    .await;
}

#[tokio::test]
async fn messages_up_to_the_limit_go_and_longer_ones_are_refused() {
    over_each(async |server, _service, mut client| {
        let large = message(vec![9; 4_000_000], 0);
        assert_eq!(client.unary(large.clone()).await.unwrap().into_inner(), large);
        let too_large = message(vec![9; 5_000_000], 0);
        assert_eq!(client.unary(too_large).await.unwrap_err().code(), Code::OutOfRange);
        let mut strict = EchoClient::new(server.channel().await).max_decoding_message_size(1_000);
        assert_eq!(strict.unary(message(vec![1; 2_000], 0)).await.unwrap_err().code(), Code::OutOfRange);
        let mut strict = EchoClient::new(server.channel().await).max_encoding_message_size(1_000);
        assert!(strict.unary(message(vec![1; 2_000], 0)).await.is_err());
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

/// Calls beyond the limit wait for a permit, and short windows are updated often.
#[tokio::test]
async fn few_calls_at_once_and_short_windows_suffice() {
    for (calls_max, window_bytes) in [(1, 1), (2, 7), (3, 100_000)] {
        let options = GrpcOptions::default().calls_max(calls_max).window_bytes(window_bytes);
        let service = Behaviour::default();
        let routes = Routes::new(EchoServer::new(service.clone()));
        let at = "127.0.0.1:0".parse().unwrap();
        let server = Running::start_at(Transport::Native, routes, at, options.clone()).await;
        let client = EchoClient::new(channel(Transport::Native, server.address, options).await);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..20_u8 {
            let mut client = client.clone();
            tasks.spawn(async move {
                for bytes in [0, 1, 300] {
                    let expected = message(vec![task; bytes], 1);
                    assert_eq!(client.unary(expected.clone()).await.unwrap().into_inner(), expected);
                }
            });
        }
        while let Some(task) = soon(tasks.join_next()).await {
            task.unwrap();
        }
    }
}

/// A request that fails before its first byte or in the middle releases its permit for the next call.
#[tokio::test]
async fn does_not_delay_calls_for_unsendable_requests() {
    let options = GrpcOptions::default().calls_max(1);
    let service = Behaviour::default();
    let routes = Routes::new(EchoServer::new(service.clone()));
    let at = "127.0.0.1:0".parse().unwrap();
    let server = Running::start_at(Transport::Native, routes, at, options.clone()).await;
    let channel = channel(Transport::Native, server.address, options).await;
    let mut client = EchoClient::new(channel).max_encoding_message_size(100);
    for _ in 0..5 {
        let too_large = || message(vec![1; 200], 0);
        soon(client.unary(too_large())).await.unwrap_err();
        let failing = tokio_stream::iter([message("", 0), too_large()]);
        soon(client.collect(failing)).await.unwrap_err();
        let mut sender = client.clone();
        let panicking = tokio_stream::iter([()]).map(|()| panic!("as asked"));
        let panicked = tokio::spawn(async move { drop(sender.collect(panicking).await) });
        assert!(soon(panicked).await.unwrap_err().is_panic());
        let mut sender = client.clone();
        let (send, sent) = tokio::sync::mpsc::channel(1);
        let late = tokio_stream::wrappers::ReceiverStream::new(sent).map(|()| panic!("as asked"));
        let begun = count(&service.begun);
        let collecting = tokio::spawn(async move { sender.collect(late).await });
        until(|| count(&service.begun) > begun).await;
        send.send(()).await.unwrap();
        soon(collecting).await.unwrap().unwrap_err();
        soon(client.unary(message("", 0))).await.unwrap();
    }
}

#[tokio::test]
async fn does_not_delay_calls_for_cancelled_waiting_calls() {
    let options = GrpcOptions::default().calls_max(1);
    let service = Behaviour::default();
    let at = "127.0.0.1:0".parse().unwrap();
    let routes = Routes::new(EchoServer::new(service.clone()));
    let server = Running::start_at(Transport::Native, routes, at, options.clone()).await;
    let client = EchoClient::new(channel(Transport::Native, server.address, options).await);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let mut client = client.clone();
        tasks.push(tokio::spawn(async move { drop(client.unary(told(WAIT, message("", 0))).await) }));
    }
    until(|| count(&service.begun) == 1).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let mut client = client.clone();
    soon(client.unary(message("", 0))).await.unwrap();
}

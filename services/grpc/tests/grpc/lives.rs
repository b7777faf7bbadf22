//! Ends that stop, crash and restart; several clients.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::{Channel, GrpcOptions, Server, Services};
use tokio_stream::StreamExt;
use tonic::service::Routes;
use tonic::{Code, Request};

use super::support::service::{Behaviour, WAIT, count, message, told};
use super::support::{Running, Transport, nic, over_each, soon, until};

#[tokio::test]
async fn a_server_that_stops_ends_what_runs_and_begins_nothing() {
    over_each(async |server, service, mut client| {
        let (send, sent) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(sent);
        send.send(message("one", 0)).await.unwrap();
        let mut answers = client.converse(requests).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap(), message("one", 0));
        let transport = server.transport;
        let stopped = server.stop();
        // After the goodbye has arrived, no call begins.
        loop {
            let begun = count(&service.begun);
            match tokio::time::timeout(super::support::LOST, client.unary(message("", 0))).await.unwrap() {
                Ok(_) => assert!(count(&service.begun) > begun),
                Err(status) => {
                    assert!(!transport.has_frames() || status.code() == Code::Unavailable, "{status:?}");
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        send.send(message("two", 0)).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), message("two", 0));
        drop(send);
        assert!(answers.next().await.is_none());
        stopped.await.unwrap();
    })
    .await;
}

/// Also while the server waits for the last calls.
#[tokio::test]
async fn a_server_that_is_dropped_ends_its_calls_at_once() {
    for was_told_to_stop in [false, true] {
        let service = Behaviour::default();
        let server = Server::bind(&nic(), "127.0.0.1:0", GrpcOptions::default()).unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let services = Services::new().add_service(EchoServer::new(service.clone()));
        let serving = tokio::spawn(server.serve_until(services, stopped));
        let channel = Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap();
        let mut client = EchoClient::new(channel.clone());
        let waiting = tokio::spawn(async move { client.unary(told(WAIT, message("", 0))).await });
        until(|| count(&service.begun) == 1).await;
        if was_told_to_stop {
            stop.send(()).unwrap();
            let mut client = EchoClient::new(channel.clone());
            soon(async { while client.unary(message("", 0)).await.is_ok() {} }).await;
        }
        assert_eq!(count(&service.begun), count(&service.dropped) + 1);
        serving.abort();
        assert_eq!(soon(waiting).await.unwrap().unwrap_err().code(), Code::Unavailable);
        until(|| count(&service.begun) == count(&service.dropped)).await;
    }
}

#[tokio::test]
async fn a_connection_ends_with_the_last_channel() {
    let service = Behaviour::default();
    let routes = Routes::new(EchoServer::new(service.clone()));
    let server = Running::start(Transport::Native, routes).await;
    let mut client = server.client().await;
    let never = tokio_stream::once(message("one", 0)).chain(tokio_stream::pending());
    let mut answers = client.converse(never).await.unwrap().into_inner();
    drop(client);
    // Open calls continue without the channel.
    assert_eq!(soon(answers.next()).await.unwrap().unwrap(), message("one", 0));
    drop(answers);
    soon(server.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_are_served() {
    over_each(async |server, _service, _client| {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..12_u32 {
            let mut client = server.client().await;
            tasks.spawn(async move {
                for round in 0..30 {
                    let expected = message(vec![1; 100], task * 1_000 + round);
                    assert_eq!(client.unary(expected.clone()).await.unwrap().into_inner(), expected);
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn queues_clients_beyond_the_connection_limit() {
    let mut options = GrpcOptions::default().connections_max(1);
    options.stream = options.stream.connect_timeout(super::support::LOST);
    let routes = Routes::new(EchoServer::new(Behaviour::default()));
    let at = "127.0.0.1:0".parse().unwrap();
    let server = Running::start_at(Transport::Native, routes, at, options.clone()).await;
    let connect = || EchoClient::new(Channel::connect_lazy(&nic(), server.address, options.clone()));
    let (mut first, mut second) = (connect(), connect());
    soon(first.unary(message("", 0))).await.unwrap();
    let waiting = tokio::spawn(async move { second.unary(message("", 0)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    soon(first.unary(message("", 0))).await.unwrap();
    assert!(!waiting.is_finished());
    drop(first);
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn reports_unavailable_if_no_server_listens() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let status = EchoClient::new(Channel::connect_lazy(&nic(), nobody, GrpcOptions::default()))
        .unary(message("", 0))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&nobody.to_string()), "{status:?}");
    assert!(Channel::connect(&nic(), nobody, GrpcOptions::default()).await.is_err());
}

#[tokio::test]
async fn reports_a_peer_that_speaks_another_protocol() {
    let mut listener =
        farcall_stream::AsyncStreamListener::bind(&nic(), "127.0.0.1:0", Default::default()).unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    let error = soon(Channel::connect(&nic(), address, GrpcOptions::default())).await.unwrap_err();
    assert!(farcall_verbs::with_sources(&error).contains("uses another protocol"), "{error}");
}

/// Variable that makes the test binary a server process.
const CHILD: &str = "FARCALL_GRPC_TEST_CHILD";

#[test]
fn child_serves() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bind = || Server::bind(&nic(), address.as_str(), GrpcOptions::default());
        let server = loop {
            // Another process may use the port for a moment.
            match bind() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                server => break server.unwrap(),
            }
        };
        println!("serving on <{}>", server.address().unwrap());
        let services = Services::new().add_service(EchoServer::new(Behaviour::default()));
        server.serve(services).await.unwrap();
    });
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Other {
    fn start(at: &str) -> (Self, SocketAddr) {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lives::child_serves", "--nocapture", "--test-threads=1"])
            .env(CHILD, at)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Self(process);
        let mut said = BufReader::new(other.0.stdout.take().unwrap());
        loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server process ended");
            if let Some((address, _)) = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
                return (other, address.parse().unwrap());
            }
        }
    }
}

#[tokio::test]
async fn fails_calls_of_a_killed_server_and_finds_the_next() {
    let (server, address) = Other::start("127.0.0.1:0");
    let channel = Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap();
    let mut client = EchoClient::new(channel.clone());
    client.unary(message("", 0)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let mut client = client.clone();
        tasks.spawn(async move { client.unary(told(WAIT, message("", 0))).await.unwrap_err() });
    }
    let never = tokio_stream::once(message("one", 0)).chain(tokio_stream::pending());
    let mut answers = client.converse(Request::new(never)).await.unwrap().into_inner();
    assert_eq!(answers.next().await.unwrap().unwrap(), message("one", 0));
    drop(server);
    while let Some(status) = soon(tasks.join_next()).await {
        assert_eq!(status.unwrap().code(), Code::Unavailable);
    }
    assert_eq!(soon(answers.next()).await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.unary(message("", 0)).await.unwrap_err().code(), Code::Unavailable);

    let (_server, _address) = Other::start(&address.to_string());
    soon(async {
        while client.unary(message("", 0)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_methods_of_a_killed_client_are_dropped() {
    let service = Behaviour::default();
    let server = Running::start(Transport::Native, Routes::new(EchoServer::new(service.clone()))).await;
    let address = server.address.to_string();
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lives::child_waits", "--test-threads=1"])
        .env(CLIENT, address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = Other(process);
    until(|| count(&service.begun) == 3).await;
    assert_eq!(count(&service.dropped), 0);
    drop(process);
    until(|| count(&service.dropped) == 3).await;
    server.client().await.unary(message("", 0)).await.unwrap();
}

const CLIENT: &str = "FARCALL_GRPC_TEST_CLIENT";

#[test]
fn child_waits() {
    let Ok(address) = std::env::var(CLIENT) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = address.parse().unwrap();
        let channel = Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap();
        let mut clients = [(); 3].map(|()| EchoClient::new(channel.clone()));
        let [a, b, c] = &mut clients;
        let wait = || told(WAIT, message("", 0));
        let _ended = tokio::join!(a.unary(wait()), b.unary(wait()), c.unary(wait()));
    });
}

/// The runtime that drove a connection has ended: calls that wait in another runtime fail.
#[test]
fn a_runtime_that_ends_takes_its_connections_with_it() {
    let start =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (start(), start());
    let service = Behaviour::default();
    let routes = Routes::new(EchoServer::new(service.clone()));
    let (server, channel) = first.block_on(async {
        let server = Running::start(Transport::Native, routes).await;
        let address = server.address;
        (server, Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap())
    });
    let mut client = EchoClient::new(channel);
    let waiting = second.spawn(async move { client.unary(told(WAIT, message("", 0))).await.unwrap_err() });
    second.block_on(until(|| count(&service.begun) == 1));
    drop(server);
    drop(first);
    assert_eq!(second.block_on(waiting).unwrap().code(), Code::Unavailable);
}

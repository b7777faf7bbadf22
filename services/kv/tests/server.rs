//! A server with RPC clients and memcached clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farcall_kv::Router;
use farcall_kv::memcached::client::Client;
use farcall_kv::server::{KvServer, KvServerBuilder, KvServerError};
use farcall_kv::store::PutMode;
use farcall_kv::wire::{Request, decode_item, decode_ping_reply};
use farcall_link::Nic;
use farcall_rpc::{CallError, Client as RpcClient, ClientOptions};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn builder(name: &str) -> KvServerBuilder {
    KvServer::builder().tcp(any_port()).unix(socket(name)).memory_bytes(32 << 20)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Returns the path of a socket, which the server removes when it stops.
fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farcall-test-{}-{name}.sock", std::process::id()))
}

#[test]
fn serves_one_store_at_both_front_ends_with_any_partitions() {
    for partitions in [1, 3] {
        let server = builder("both").partitions(partitions).start().unwrap();
        let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
        let mut unix = Client::connect_unix(server.unix_paths().next().unwrap()).unwrap();
        for number in 0..100 {
            tcp.set(format!("key{number}").as_bytes(), b"value").unwrap();
        }
        for number in 0..100 {
            let value = unix.get(format!("key{number}").as_bytes()).unwrap();
            assert_eq!(value.unwrap().bytes, b"value");
        }
        assert!(server.is_serving());
        server.stop().unwrap();
        assert!(tcp.get(b"key1").is_err(), "a stopped server has no connections");
    }
}

/// Connects one RPC client for each partition; the first queries their number and the routing of keys.
fn rpc_clients(address: SocketAddr) -> (Router, Vec<RpcClient>) {
    let connect = |thread| {
        let options = ClientOptions::default().probe(false).thread(thread);
        RpcClient::connect(&nic(), address.to_string(), options).unwrap()
    };
    let mut first = connect(0);
    let router = decode_ping_reply(&call(&mut first, Request::Ping).unwrap()).unwrap().router();
    let others = (1..router.partitions() as u16).map(connect);
    let mut clients = vec![first];
    clients.extend(others);
    (router, clients)
}

fn call(client: &mut RpcClient, request: Request<'_>) -> Result<Vec<u8>, CallError> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    request.encode(&mut bytes);
    client.call(request.method().id(), &bytes, &mut reply).map(|()| reply)
}

#[test]
fn serves_one_store_to_rpc_and_memcached_clients() {
    for partitions in [1, 3] {
        let server = builder("rpc").partitions(partitions).rpc(any_port(), &nic()).start().unwrap();
        let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
        let (router, mut clients) = rpc_clients(server.rpc_address().unwrap());
        assert_eq!(clients.len(), partitions as usize);
        let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
        for key in &keys {
            let owner = router.owner(&router.key(key.as_bytes()).unwrap()) as usize;
            let put = Request::Put {
                key: key.as_bytes(),
                value: b"by rpc",
                flags: 0,
                ttl_ms: 0,
                mode: PutMode::Set,
            };
            call(&mut clients[owner], put).unwrap();
            // The thread of the socket may be any; it forwards the command to the owner.
            assert_eq!(tcp.get(key.as_bytes()).unwrap().unwrap().bytes, b"by rpc");
            tcp.set(key.as_bytes(), b"by tcp").unwrap();
            let get = Request::Get { key: key.as_bytes() };
            let reply = call(&mut clients[owner], get).unwrap();
            assert_eq!(decode_item(&reply).unwrap().unwrap().value, b"by tcp");
            let wrong = (owner + 1) % clients.len();
            if wrong != owner {
                let refused = call(&mut clients[wrong], get);
                assert!(matches!(refused, Err(CallError::Application { code: 3, .. })), "{refused:?}");
            }
        }
        assert!(server.is_serving());
        server.stop().unwrap();
        assert!(tcp.get(b"key1").is_err(), "a stopped server has no connections");
    }
}

#[test]
fn an_idle_thread_sleeps_and_wakes_for_both_kinds_of_clients() {
    let server = builder("idle").partitions(2).rpc(any_port(), &nic()).start().unwrap();
    let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
    let (_, mut clients) = rpc_clients(server.rpc_address().unwrap());
    for round in 0..5u8 {
        // Longer than the threads poll, so that the next command usually finds them asleep.
        std::thread::sleep(Duration::from_millis(20));
        tcp.set(b"key", &[round]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        for client in &mut clients {
            call(client, Request::Ping).unwrap();
        }
        assert_eq!(tcp.get(b"key").unwrap().unwrap().bytes, [round]);
    }
    server.stop().unwrap();
}

#[test]
fn senseless_configurations_are_refused() {
    assert!(matches!(KvServer::builder().start(), Err(KvServerError::NoAddress)));
    let none = KvServer::builder().tcp(any_port()).partitions(0).start();
    assert!(matches!(none, Err(KvServerError::NoPartition)));
    let tiny = KvServer::builder().tcp(any_port()).memory_bytes(1000).start();
    assert!(matches!(tiny, Err(KvServerError::Store(_))));
}

#[test]
fn an_address_in_use_is_named() {
    let first = builder("in-use").start().unwrap();
    let taken = first.tcp_addresses()[0];
    let error = KvServer::builder().tcp(taken).start().unwrap_err().to_string();
    assert!(error.contains(&taken.to_string()), "{error}");
    let error = KvServer::builder().unix(socket("in-use")).start().unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
}

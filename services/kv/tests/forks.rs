//! Clients that a process inherited by a fork: they refuse at once, and those of the parent continue to work.

use farcall_kv::client::{KvClient, KvError, Write};
use farcall_kv::memcached::client::{Client as SocketClient, ClientError};
use farcall_kv::server::KvServer;
use farcall_link::Nic;
use farcall_rpc::{Broken, CallError, Client, ClientOptions, Dispatcher, ServerThread, UnknownBecause};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Runs `work` in a forked child. Returns whether it succeeded; a child that hangs is killed after 30 seconds.
fn ends_well_in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs `work` and exits; no other thread of this process holds a lock that the child needs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes an integer; the signal has no handler.
        unsafe { libc::alarm(30) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child here, so that no part of the test runs twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of this process that was not waited for yet; `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn server() -> KvServer {
    let any = "127.0.0.1:0".parse().unwrap();
    KvServer::builder().tcp(any).rpc(any, &nic()).start().unwrap()
}

#[test]
fn rejects_a_store_client_in_a_forked_child_only() {
    let server = server();
    let address = server.rpc_address().unwrap().to_string();
    let mut by_rpc = Some(KvClient::connect(&nic(), &address, &ClientOptions::default()).unwrap());
    let mut by_socket = Some(SocketClient::connect_tcp(server.tcp_addresses()[0]).unwrap());
    by_rpc.as_mut().unwrap().put(b"key", Write::of(b"value")).unwrap();
    let child_ended_well = ends_well_in_child(|| {
        let (mut rpc, mut socket) = (by_rpc.take().unwrap(), by_socket.take().unwrap());
        let refused = rpc.get(b"key").unwrap_err();
        assert!(matches!(refused, KvError::Call(CallError::NotSent(Broken::Forked))), "{refused}");
        let refused = socket.get(b"key").unwrap_err();
        assert!(matches!(refused, ClientError::Forked), "{refused}");
        // Dropping them in the child does not close the connections of the parent.
        drop((rpc, socket));
    });
    assert!(child_ended_well);
    assert_eq!(by_rpc.unwrap().get(b"key").unwrap().unwrap().value, b"value");
    assert_eq!(by_socket.unwrap().get(b"key").unwrap().unwrap().bytes, b"value");
    server.stop().unwrap();
}

#[test]
fn ends_calls_in_flight_in_a_forked_child_only() {
    let server = server();
    let address = server.rpc_address().unwrap().to_string();
    let mut client = Client::connect(&nic(), address, ClientOptions::default()).unwrap();
    // The method does not exist in the store; the error is a reply.
    let call = client.submit(u16::MAX, b"").unwrap();
    let child_ended_well = ends_well_in_child(|| {
        let done = client.wait().unwrap();
        let unknown = Err(CallError::OutcomeUnknown(UnknownBecause::Disconnected(Broken::Forked)));
        assert_eq!((done.call, done.result), (call, unknown));
        assert_eq!(client.submit(1, b""), Err(CallError::NotSent(Broken::Forked)));
        assert!(client.wait().is_err(), "nothing is outstanding");
    });
    assert!(child_ended_well);
    let done = client.wait().unwrap();
    assert_eq!(done.call, call);
    assert!(matches!(done.result, Err(CallError::Application { .. })), "{:?}", done.result);
    drop(client);
    server.stop().unwrap();
}

#[test]
fn rejects_requesters_in_a_forked_child_only() {
    let server = server();
    let servers = [ServerThread { address: server.rpc_address().unwrap().to_string(), thread: 0 }];
    let dispatcher = Dispatcher::start(&nic(), &servers, ClientOptions::default()).unwrap();
    let mut requester = dispatcher.requester(2).unwrap();
    let call = requester.submit(0, u16::MAX, b"").unwrap();
    let mut dispatcher = Some(dispatcher);
    let child_ended_well = ends_well_in_child(|| {
        let done = requester.wait().unwrap();
        let is_known = matches!(done.result, Err(CallError::Application { .. }));
        let unknown = Err(CallError::OutcomeUnknown(UnknownBecause::Disconnected(Broken::Forked)));
        assert!(done.call == call && (is_known || done.result == unknown), "{:?}", done.result);
        assert_eq!(requester.submit(0, 1, b""), Err(CallError::NotSent(Broken::Forked)));
        assert!(requester.wait().is_err(), "nothing is outstanding");
        drop(dispatcher.take());
    });
    assert!(child_ended_well);
    let done = requester.wait().unwrap();
    assert_eq!(done.call, call);
    assert!(matches!(done.result, Err(CallError::Application { .. })), "{:?}", done.result);
    drop(dispatcher);
    server.stop().unwrap();
}

//! One thread that waits for many streams.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::WaitStrategy;
use farcall_stream::{StreamError, StreamListener, StreamOptions, StreamSet, StreamSocket};
use support::nic;

const STREAMS: usize = 12;

/// Wait strategies, and the socket options for them.
fn ways() -> Vec<(WaitStrategy, StreamOptions)> {
    let pollable = || StreamOptions::default().pollable();
    let pollers = Pollers::start(2).unwrap();
    let bpev = |bp_timeout_us| WaitStrategy::Bpev { bp_timeout_us };
    vec![
        (WaitStrategy::Busy, StreamOptions::default().waiting(WaitStrategy::Busy)),
        (WaitStrategy::EventBatch, pollable()),
        (bpev(None), pollable()),
        (bpev(None), pollable().pollers(pollers.clone())),
        (bpev(Some(0)), pollable().pollers(pollers)),
    ]
}

/// Echoes until all streams have ended.
fn echo(listener: &mut StreamListener, mut set: StreamSet) {
    for _ in 0..STREAMS {
        set.insert(listener.accept().unwrap()).unwrap();
    }
    let mut ready = Vec::new();
    while !set.is_empty() {
        set.wait(&mut ready, None).unwrap();
        for at in ready.iter().copied() {
            if is_over(set.socket(at).unwrap()) {
                set.remove(at);
            }
        }
    }
}

fn is_over(socket: &mut StreamSocket) -> bool {
    let mut bytes = [0; 64];
    loop {
        // Even a few bytes may find no space: a polling client may be late to report the wake-ups that it consumed.
        let read = socket.operate(None, |stream| {
            if stream.is_writable() { stream.read(&mut bytes) } else { Err(StreamError::WouldBlock) }
        });
        match read {
            Ok(0) => return true,
            Ok(count) => assert_eq!(socket.write(&bytes[..count]).unwrap(), count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_stream_of_a_set_is_answered_until_it_ends() {
    for (waiting, options) in ways() {
        let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options).unwrap();
        let address = listener.address().unwrap();
        let server = thread::spawn(move || echo(&mut listener, StreamSet::new(waiting).unwrap()));
        let clients: Vec<_> = (0..STREAMS as u64)
            .map(|client| {
                let options = StreamOptions::default().waiting(WaitStrategy::EventBatch);
                let mut socket = StreamSocket::connect(&nic(), address, options).unwrap();
                thread::spawn(move || {
                    for round in 0..100 {
                        let (said, mut heard) = ((client << 32 | round).to_le_bytes(), [0; 8]);
                        socket.write_all(&said).unwrap();
                        socket.read_exact(&mut heard).unwrap();
                        assert_eq!(heard, said);
                        if round % 32 == client % 32 {
                            thread::sleep(Duration::from_millis(4));
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        server.join().unwrap();
    }
}

#[test]
fn a_set_waits_no_longer_than_it_may() {
    for (waiting, options) in ways() {
        let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options.clone()).unwrap();
        let address = listener.address().unwrap();
        let client = thread::spawn(move || StreamSocket::connect(&nic(), address, options).unwrap());
        let mut set = StreamSet::new(waiting).unwrap();
        let at = set.insert(listener.accept().unwrap()).unwrap();
        let _client = client.join().unwrap();
        let mut ready = Vec::new();
        // Remaining messages of the handshake may make sockets ready.
        while {
            set.wait(&mut ready, Some(Duration::from_millis(5))).unwrap();
            !ready.is_empty()
        } {
            assert!(!is_over(set.socket(at).unwrap()));
        }
    }
}

#[test]
fn a_set_that_sleeps_takes_no_socket_without_a_descriptor() {
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    let client =
        thread::spawn(move || StreamSocket::connect(&nic(), address, StreamOptions::default()).unwrap());
    let socket = listener.accept().unwrap();
    let mut set = StreamSet::new(WaitStrategy::EventBatch).unwrap();
    assert_eq!(set.insert(socket).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(set.is_empty());
    drop(client.join().unwrap());
}

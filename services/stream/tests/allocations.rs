//! A warmed-up stream allocates no memory for a message, neither through rings nor over TCP.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use counting::allocations;
use farcall_link::WaitStrategy;
use farcall_stream::{StreamListener, StreamOptions, StreamPath, StreamSocket};
use hosts::{End, SERVER, end_of, listens};
use support::nic;

const PATIENCE: Duration = Duration::from_secs(30);
const WARM_UP_ROUNDS: usize = 200;
const ROUNDS: usize = 10_000;
/// Tolerated allocations: a ring may still grow if an end is preempted. Registering a new ring and requesting its key
/// takes about 20 allocations, and no ring grows more than a few times.
const FEW: u64 = ROUNDS as u64 / 100;
/// A message that TCP sends at once, and a longer one.
const SIZES_BYTES: [usize; 2] = [64, 30_000];

/// Both wait strategies of a serving thread: polling, and sleeping until an event.
fn waits() -> [StreamOptions; 2] {
    [WaitStrategy::Busy, WaitStrategy::EventBatch]
        .map(|waiting| StreamOptions::default().waiting(waiting).connect_timeout(PATIENCE))
}

/// Sends a message and receives its echo, or echoes; only the first rounds may allocate.
fn rounds(mut socket: StreamSocket, asks: bool) {
    for size_bytes in SIZES_BYTES {
        let (sent, mut got) = (vec![7; size_bytes], vec![0; size_bytes]);
        let mut begun = 0;
        for round in 0..WARM_UP_ROUNDS + ROUNDS {
            if round == WARM_UP_ROUNDS {
                begun = allocations();
            }
            if asks {
                socket.write_all(&sent).unwrap();
            }
            socket.read_exact(&mut got).unwrap();
            if !asks {
                socket.write_all(&got).unwrap();
            }
        }
        let allocated = allocations() - begun;
        assert_eq!(got, sent);
        let path = socket.path();
        assert!(allocated < FEW, "{allocated} in {ROUNDS} rounds of {size_bytes} B over {path:?}");
    }
    socket.close(PATIENCE).unwrap();
}

#[test]
fn bytes_through_rings_allocate_nothing() {
    for options in waits() {
        let (told, address) = mpsc::channel();
        let server_options = options.clone();
        let server = thread::spawn(move || {
            let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", server_options).unwrap();
            told.send(listener.address().unwrap()).unwrap();
            rounds(listener.accept().unwrap(), false);
        });
        let client = StreamSocket::connect(&nic(), address.recv().unwrap(), options).unwrap();
        assert_ne!(client.path(), StreamPath::Tcp);
        rounds(client, true);
        server.join().unwrap();
    }
}

#[test]
fn bytes_over_tcp_allocate_nothing() {
    match end_of("bytes_over_tcp_allocate_nothing", &[]) {
        None => {}
        Some(End::Server) => {
            let [options, _] = waits();
            let mut listener = StreamListener::bind(&nic(), SERVER, options).unwrap();
            listens();
            for _ in waits() {
                rounds(listener.accept().unwrap(), false);
            }
        }
        Some(End::Client) => {
            for options in waits() {
                let client = StreamSocket::connect(&nic(), SERVER, options).unwrap();
                assert_eq!(client.path(), StreamPath::Tcp);
                rounds(client, true);
            }
        }
    }
}

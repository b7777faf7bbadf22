//! Streams between two hosts without an RNIC: over TCP.

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::WaitStrategy;
use farcall_stream::{
    OpenError, StreamConfig, StreamListener, StreamOptions, StreamPath, StreamSet, StreamSocket,
};
use hosts::{End, SERVER, end_of, listens};
use support::{bytes_at, nic};

const LONG: Duration = Duration::from_secs(30);

fn listen(options: StreamOptions) -> StreamListener {
    let listener = StreamListener::bind(&nic(), SERVER, options.connect_timeout(LONG)).unwrap();
    listens();
    listener
}

fn accept(listener: &mut StreamListener) -> StreamSocket {
    let socket = listener.accept().unwrap();
    assert_eq!(socket.path(), StreamPath::Tcp);
    socket
}

fn connect(options: StreamOptions) -> StreamSocket {
    let socket = StreamSocket::connect(&nic(), SERVER, options.connect_timeout(LONG)).unwrap();
    assert_eq!(socket.path(), StreamPath::Tcp);
    socket
}

fn waits() -> Vec<StreamOptions> {
    let options = StreamOptions::default;
    let bpev = options().waiting(WaitStrategy::Bpev { bp_timeout_us: None });
    vec![
        options(),
        options().waiting(WaitStrategy::Busy),
        options().waiting(WaitStrategy::EventBatch),
        options().pollable(),
        bpev.pollers(Pollers::start(1).unwrap()),
    ]
}

/// Tests half-close of both directions and the repeated end after all bytes, with every wait strategy.
#[test]
fn ends_each_direction_separately_between_hosts() {
    let sent = bytes_at(0, 3_000_000);
    match end_of("ends_each_direction_separately_between_hosts", &[]) {
        None => {}
        Some(End::Server) => {
            let mut listener = listen(StreamOptions::default());
            for _ in waits() {
                let mut socket = accept(&mut listener);
                let mut got = Vec::new();
                socket.read_to_end(&mut got).unwrap();
                assert!(got == sent);
                assert_eq!(socket.read(&mut [0; 4]).unwrap(), 0);
                socket.write_all(b"all of it").unwrap();
                socket.close(LONG).unwrap();
            }
        }
        Some(End::Client) => {
            for options in waits() {
                let mut client = connect(options);
                client.write_all(&sent).unwrap();
                client.finish().unwrap();
                assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
                let mut answer = String::new();
                client.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "all of it");
                client.close(LONG).unwrap();
            }
            let blocks = farcall_stats::read_pid(std::process::id()).unwrap().blocks;
            let shown: Vec<_> = blocks.iter().filter(|block| block.label.starts_with("stream ")).collect();
            assert!(!shown.is_empty());
            for block in shown {
                assert!(
                    block.label.contains(SERVER) && block.label.ends_with(" connected"),
                    "{}",
                    block.label
                );
                let counter = |name| block.counters.iter().find(|(counter, _)| counter == name).unwrap().1;
                assert_eq!(counter("why"), farcall_stats::PathReason::NothingReaches as u64);
                assert_eq!((counter("sent_bytes"), counter("received_bytes")), (3_000_000, 9));
            }
        }
    }
}

/// Tests messages that arrive while the other side sleeps, polls, or is about to sleep.
#[test]
fn between_hosts_no_message_is_slept_through() {
    match end_of("between_hosts_no_message_is_slept_through", &[]) {
        None => {}
        Some(End::Server) => {
            let mut listener = listen(StreamOptions::default());
            for options in waits() {
                drop(options);
                let mut socket = accept(&mut listener);
                let mut bytes = [0; 8];
                while socket.read_exact(&mut bytes).is_ok() {
                    socket.write_all(&bytes).unwrap();
                }
            }
        }
        Some(End::Client) => {
            for options in waits() {
                let mut client = connect(options);
                for round in 0..200_u64 {
                    client.write_all(&round.to_le_bytes()).unwrap();
                    let mut back = [0; 8];
                    client.read_exact(&mut back).unwrap();
                    assert_eq!(u64::from_le_bytes(back), round);
                    if round % 97 == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
            }
        }
    }
}

/// Tests a non-blocking writer: it stops when the peer does not read, reports exact counts, and its descriptor reports
/// when it may continue. Lent bytes are contiguous, and composed bytes arrive.
#[test]
fn stops_a_writer_between_hosts_until_its_peer_reads() {
    const WHOLE: usize = 40_000_000;
    let name = "stops_a_writer_between_hosts_until_its_peer_reads";
    match end_of(name, &[]) {
        None => {}
        Some(End::Server) => {
            let mut listener = listen(StreamOptions::default());
            let mut socket = accept(&mut listener);
            socket.write_all(b"connected").unwrap();
            // Waits until the client has filled the connection.
            let mut told = accept(&mut listener);
            told.read_exact(&mut [0; 1]).unwrap();
            let (mut at, piece_bytes) = (0, 100_000);
            while at < WHOLE {
                let lent = socket.operate(None, |stream| {
                    stream.fill(piece_bytes).map(|lent| {
                        assert_eq!(lent[..piece_bytes], bytes_at(at as u64, piece_bytes));
                        piece_bytes
                    })
                });
                at += lent.unwrap();
                let consumed = socket.operate(None, |stream| {
                    stream.consume(piece_bytes);
                    Ok(())
                });
                consumed.unwrap();
            }
            assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
        }
        Some(End::Client) => {
            let mut client = connect(StreamOptions::default().pollable());
            client.set_nonblocking(true).unwrap();
            let (all, mut at, mut is_told) = (bytes_at(0, WHOLE), 0, false);
            while at < WHOLE {
                let piece = &all[at..WHOLE.min(at + 300_000)];
                // Alternately written and composed.
                let written = match at % 2 {
                    0 => client.write(piece),
                    _ => client.operate(None, |stream| {
                        stream.write_with(piece.len(), |space| {
                            let put = space.put(&piece[..piece.len().min(9_999)]);
                            assert!(put > 0);
                            space.put_at(0, &piece[..1]);
                        })
                    }),
                };
                match written {
                    Ok(count) => at += count,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        if !is_told {
                            is_told = true;
                            connect(StreamOptions::default()).write_all(b"x").unwrap();
                        }
                        wait_readable(client.pollable_fd().unwrap());
                    }
                }
            }
            assert!(is_told, "{WHOLE} bytes have room in the system: the test tests nothing");
            assert!(client.counters().stalls > 0);
            client.set_nonblocking(false).unwrap();
            client.close(LONG).unwrap();
        }
    }
}

fn wait_readable(fd: std::os::fd::RawFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: `fd` belongs to a socket that outlives this call, so it stays open during the borrow.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let wait = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)), Ok(1), "nothing comes");
}

/// A reset, and the exit of a process that had not ended its stream, are reported as errors after the received bytes;
/// the exit of one that had is the end of the stream.
#[test]
fn reports_a_reset_and_a_killed_peer_between_hosts() {
    /// The client's end in a separate process, which is killed.
    const KILLED: &str = "FARCALL_TEST_KILLED";
    const NAME: &str = "reports_a_reset_and_a_killed_peer_between_hosts";
    match end_of(NAME, &[]) {
        None => {}
        Some(End::Server) => {
            let mut listener = listen(StreamOptions::default());
            for ends_well in [false, false, true] {
                let mut socket = accept(&mut listener);
                let mut first = [0; 2];
                socket.read_exact(&mut first).unwrap();
                socket.write_all(b"x").unwrap();
                let (mut rest, mut end) = (Vec::new(), None);
                while end.is_none() {
                    let mut byte = [0];
                    match socket.read(&mut byte) {
                        Ok(0) => end = Some(true),
                        Ok(_) => rest.push(byte[0]),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                            end = Some(false);
                        }
                    }
                }
                assert_eq!((&first, &rest[..], end), (b"wo", &b"rds"[..], Some(ends_well)));
                if !ends_well {
                    // The peer no longer reads, so a write fails.
                    assert_eq!(socket.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
                }
            }
        }
        Some(End::Client) => {
            let begin = || {
                let mut client = connect(StreamOptions::default());
                client.write_all(b"words").unwrap();
                client.read_exact(&mut [0; 1]).unwrap();
                client
            };
            if let Ok(when) = std::env::var(KILLED) {
                let mut client = begin();
                if when == "after its end" {
                    client.finish().unwrap();
                }
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            }
            begin().reset();
            for when in ["before its end", "after its end"] {
                let mut child = std::process::Command::new(std::env::current_exe().unwrap());
                let child = child.args(["--exact", NAME]).env(KILLED, when).output().unwrap();
                assert!(!child.status.success(), "{child:?}");
            }
        }
    }
}

/// Tests many streams served by one thread, which sleeps while no bytes arrive.
#[test]
fn between_hosts_a_set_waits_for_many_streams() {
    const STREAMS: usize = 10;
    match end_of("between_hosts_a_set_waits_for_many_streams", &[]) {
        None => {}
        Some(End::Server) => {
            let mut listener = listen(StreamOptions::default().pollable());
            let mut set = StreamSet::new(WaitStrategy::EventBatch).unwrap();
            for _ in 0..STREAMS {
                set.insert(accept(&mut listener)).unwrap();
            }
            let (mut ready, mut bytes) = (Vec::new(), [0; 64]);
            while !set.is_empty() {
                set.wait(&mut ready, Some(LONG)).unwrap();
                for at in ready.iter().copied() {
                    let Some(socket) = set.socket(at) else { continue };
                    match socket.read(&mut bytes) {
                        Ok(0) => set.remove(at),
                        Ok(count) => socket.write_all(&bytes[..count]).unwrap(),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
            }
        }
        Some(End::Client) => {
            let mut clients: Vec<_> = (0..STREAMS).map(|_| connect(StreamOptions::default())).collect();
            for round in 0..30_u8 {
                for client in &mut clients {
                    client.write_all(&[round; 5]).unwrap();
                }
                for client in &mut clients {
                    let mut back = [0; 5];
                    client.read_exact(&mut back).unwrap();
                    assert_eq!(back, [round; 5]);
                }
            }
        }
    }
}

/// Accepts no stream until the client reports that it is done.
fn refuse_until_done() {
    let mut listener = listen(StreamOptions::default());
    listener.set_nonblocking(true);
    while !std::path::Path::new("/run/done").exists() {
        match listener.accept() {
            Ok(socket) => assert_eq!(socket.path(), StreamPath::Verbs),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(listener.accept_counts().over_tcp, 0);
}

/// A path that the environment forbids is refused with a message; there is no silent fallback.
#[test]
fn rejects_a_stream_between_hosts_forbidden_by_environment() {
    let name = "rejects_a_stream_between_hosts_forbidden_by_environment";
    match end_of(name, &[("FARCALL_TRANSPORT", "shared-memory")]) {
        None => {}
        Some(End::Server) => refuse_until_done(),
        Some(End::Client) => {
            let options = StreamOptions::default().connect_timeout(LONG);
            let refused = StreamSocket::connect(&nic(), SERVER, options).map(drop).unwrap_err();
            assert!(matches!(refused, OpenError::Refused(_)), "{refused}");
            assert!(
                farcall_verbs::with_sources(&refused).contains("FARCALL_TRANSPORT=shared-memory"),
                "{refused}"
            );
            std::fs::write("/run/done", []).unwrap();
        }
    }
}

/// Tests the same for hosts that are not listed.
#[test]
fn rejects_a_stream_between_hosts_that_are_not_listed() {
    let name = "rejects_a_stream_between_hosts_that_are_not_listed";
    match end_of(name, &[("FARCALL_NET_PEERS", "10.99.0.77")]) {
        None => {}
        Some(End::Server) => refuse_until_done(),
        Some(End::Client) => {
            let options = StreamOptions::default().connect_timeout(LONG);
            let refused = StreamSocket::connect(&nic(), SERVER, options).map(drop).unwrap_err();
            println!("refused: {refused}");
            assert!(matches!(refused, OpenError::Refused(_)), "{refused}");
            std::fs::write("/run/done", []).unwrap();
        }
    }
}

/// A program that forbids TCP uses only the device.
#[test]
fn between_hosts_a_program_that_forbids_tcp_does_not_use_it() {
    match end_of("between_hosts_a_program_that_forbids_tcp_does_not_use_it", &[]) {
        None => {}
        Some(End::Server) => refuse_until_done(),
        Some(End::Client) => {
            let config = StreamConfig::default().may_use_tcp(false);
            let options = StreamOptions::default().config(config).connect_timeout(LONG);
            match StreamSocket::connect(&nic(), SERVER, options) {
                Ok(socket) => assert_eq!(socket.path(), StreamPath::Verbs),
                Err(refused) => {
                    println!("refused: {refused}");
                    assert!(matches!(refused, OpenError::Refused(_)), "{refused}");
                }
            }
            std::fs::write("/run/done", []).unwrap();
        }
    }
}

//! Streams as sockets: threads, processes, descriptors.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::WaitStrategy;
use farcall_stream::{StreamConfig, StreamListener, StreamOptions, StreamSocket};
use rustix::event::epoll;
use support::{bytes_at, nic};

const LONG: Duration = Duration::from_secs(30);

/// A listener, and a thread that serves the first stream.
fn serve<T: Send + 'static>(
    options: StreamOptions,
    serve: impl FnOnce(StreamSocket) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    // Tolerates a loaded machine.
    let options = options.connect_timeout(LONG);
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options).unwrap();
    let address = listener.address().unwrap().to_string();
    (address, thread::spawn(move || serve(listener.accept().unwrap())))
}

fn connect(address: &str, options: StreamOptions) -> StreamSocket {
    StreamSocket::connect(&nic(), address, options.connect_timeout(LONG)).unwrap()
}

fn rounds(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |rounds| rounds.parse().unwrap())
}

fn waits() -> Vec<StreamOptions> {
    let options = StreamOptions::default;
    let pollers = Pollers::start(1).unwrap();
    let bpev = |bp_timeout_us| options().waiting(WaitStrategy::Bpev { bp_timeout_us });
    vec![
        bpev(None),
        bpev(None).pollers(pollers.clone()),
        bpev(Some(0)).pollers(pollers.clone()),
        options().pollable().pollers(pollers),
        options(),
        options().waiting(WaitStrategy::EventBatch),
        options().waiting(WaitStrategy::Adaptive { max_retry: 3 }),
        options().pollable(),
    ]
}

#[test]
fn ends_each_direction_separately_and_completely() {
    for options in waits() {
        let sent = bytes_at(0, 3_000_000);
        let expected = sent.clone();
        let (address, server) = serve(options.clone(), move |mut socket| {
            let mut got = Vec::new();
            socket.read_to_end(&mut got).unwrap();
            assert!(got == expected);
            socket.write_all(b"all of it").unwrap();
            socket.close(LONG).unwrap();
        });
        let mut client = connect(&address, options);
        client.write_all(&sent).unwrap();
        client.finish().unwrap();
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "all of it");
        server.join().unwrap();
    }
}

/// Tests messages that arrive while the other side sleeps, polls, or is about to sleep. FARCALL_STREAM_ROUNDS sets the
/// number of rounds.
#[test]
fn no_message_is_slept_through() {
    let rounds = rounds("FARCALL_STREAM_ROUNDS", 200);
    for (at, options) in waits().into_iter().enumerate() {
        let (address, server) = serve(options.clone(), move |mut socket| {
            let mut bytes = [0; 8];
            while socket.read_exact(&mut bytes).is_ok() {
                socket.write_all(&bytes).unwrap();
            }
        });
        let mut client = connect(&address, options);
        for round in 0..rounds {
            client.write_all(&round.to_le_bytes()).unwrap();
            let mut back = [0; 8];
            client.read_exact(&mut back).unwrap();
            assert_eq!(u64::from_le_bytes(back), round, "waiting {at}");
            match round % 97 {
                0 => thread::sleep(Duration::from_micros(300)),
                1..4 => thread::yield_now(),
                _ => {}
            }
        }
        drop(client);
        server.join().unwrap();
    }
}

#[test]
fn a_dropped_socket_has_delivered_what_was_written() {
    let (address, server) = serve(StreamOptions::default(), |mut socket| {
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        got
    });
    let mut client = connect(&address, StreamOptions::default());
    client.write_all(b"my last words").unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), b"my last words");
}

#[test]
fn a_reset_is_an_error_at_the_other_end_after_what_arrived() {
    let (tell, told) = std::sync::mpsc::channel();
    let (address, server) = serve(StreamOptions::default(), move |mut socket| {
        let (mut first, mut second) = ([0; 2], [0; 3]);
        socket.read_exact(&mut first).unwrap();
        socket.write_all(b"x").unwrap();
        told.recv().unwrap();
        socket.read_exact(&mut second).unwrap();
        (first, second, socket.read(&mut [0; 10]).unwrap_err().kind())
    });
    let mut client = connect(&address, StreamOptions::default());
    client.write_all(b"words").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    client.reset();
    tell.send(()).unwrap();
    assert_eq!(server.join().unwrap(), (*b"wo", *b"rds", ErrorKind::ConnectionReset));
}

#[test]
fn a_read_that_may_wait_so_long_does_not_wait_longer() {
    for options in waits() {
        let (address, server) = serve(options.clone(), |mut socket| socket.read(&mut [0; 1]).unwrap());
        let mut client = connect(&address, options);
        client.set_timeouts(Some(Duration::from_millis(5)), None);
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
        // The timeout loses no bytes.
        client.write_all(b"x").unwrap();
        assert_eq!(server.join().unwrap(), 1);
        client.set_timeouts(None, None);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn accepts_clients_despite_silent_and_invalid_ones() {
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let client = thread::spawn(move || {
        let mut client = connect(&address.to_string(), StreamOptions::default());
        client.write_all(b"hello").unwrap();
        client.read(&mut [0; 1]).unwrap()
    });
    let mut socket = listener.accept().unwrap();
    let mut hello = [0; 5];
    socket.read_exact(&mut hello).unwrap();
    drop(socket);
    assert_eq!(client.join().unwrap(), 0);
    // 302 clients connected, of which 256 handshakes may be in progress.
    let asked = listener.accept_counts();
    assert_eq!((asked.through_rings, asked.over_tcp, asked.late), (1, 0, 0));
    assert!(asked.displaced >= 44 && asked.displaced + asked.refused <= 301, "{asked:?}");
    // The statistics have the same counts, in the block of one of this process's listeners.
    if let Ok(report) = farcall_stats::read_pid(std::process::id()) {
        let of_listeners = report.blocks.iter().filter(|block| block.label.starts_with("stream listener "));
        let told = |block: &farcall_stats::BlockReport, what: &str, count: u64| {
            block.counters.iter().any(|(name, value)| name == what && *value == count)
        };
        let is_ours = |block: &farcall_stats::BlockReport| {
            told(block, "displaced", asked.displaced) && told(block, "through_rings", 1)
        };
        assert!(of_listeners.into_iter().any(is_ours), "{report:?}");
    }
    // The reply to an invalid message contains an error text.
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).contains("FCL1"), "{answer:?}");
    drop(silent);
}

#[test]
fn reports_the_address_without_listener() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = StreamSocket::connect(&nic(), &*free, StreamOptions::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains(&free), "{error}");
}

/// Executes an operation; when it would block, waits for an edge of the descriptor.
fn by_edges(
    socket: &mut StreamSocket,
    epoll: &impl std::os::fd::AsFd,
    mut call: impl FnMut(&mut StreamSocket) -> std::io::Result<usize>,
) -> usize {
    loop {
        match call(socket) {
            Ok(count) => return count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let mut events = Vec::with_capacity(4);
        let wait = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)).unwrap();
        assert!(!events.is_empty(), "an edge was lost");
    }
}

/// FARCALL_STREAM_EDGES sets the number of rounds.
#[test]
fn an_edge_triggered_reader_loses_no_edge() {
    let rounds = rounds("FARCALL_STREAM_EDGES", 500);
    let options = StreamOptions::default().pollable();
    let (address, server) = serve(options.clone(), move |mut socket| {
        let mut bytes = [0; 8];
        for _ in 0..rounds {
            socket.read_exact(&mut bytes).unwrap();
            socket.write_all(&bytes).unwrap();
        }
    });
    let mut client = connect(&address, options);
    client.set_nonblocking(true).unwrap();
    let fd = client.pollable_fd().unwrap();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    // SAFETY: `fd` belongs to a socket that outlives the borrow, so it stays open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    epoll::add(&epoll, fd, epoll::EventData::new_u64(7), epoll::EventFlags::IN | epoll::EventFlags::ET)
        .unwrap();
    for round in 0..rounds {
        // A peer that reads its bytes before it polls its completion queue temporarily leaves no credit for further
        // wake-ups.
        assert_eq!(by_edges(&mut client, &epoll, |client| client.write(&round.to_le_bytes())), 8);
        let (mut got, mut back) = (0, [0; 8]);
        while got < 8 {
            got += by_edges(&mut client, &epoll, |client| client.read(&mut back[got..]));
        }
        assert_eq!(u64::from_le_bytes(back), round);
    }
    server.join().unwrap();
    assert_eq!(
        by_edges(&mut client, &epoll, |client| client.read(&mut [0; 4])),
        0,
        "the end is an edge, too"
    );
}

/// Tests waiting for edges only, also with a silent client and after one that disconnected.
#[test]
fn a_listener_can_be_waited_on() {
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap().to_string();
    listener.set_nonblocking(true);
    assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let fd = listener.pollable_fd().unwrap();
    // SAFETY: `fd` belongs to the listener, which outlives the borrow, so it stays open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    epoll::add(&epoll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN | epoll::EventFlags::ET)
        .unwrap();
    let silent = TcpStream::connect(&address).unwrap();
    drop(TcpStream::connect(&address).unwrap());
    let clients = thread::spawn(move || {
        for number in 0..20_u8 {
            connect(&address, StreamOptions::default()).write_all(&[number]).unwrap();
        }
    });
    for number in 0..20 {
        let mut socket = loop {
            match listener.accept() {
                Ok(socket) => break socket,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let mut events = Vec::with_capacity(1);
            let patience = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)).unwrap();
            assert_eq!(events.len(), 1, "nothing came");
        };
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [number]);
    }
    clients.join().unwrap();
    drop(silent);
}

#[test]
fn a_socket_that_may_poll_has_no_descriptor_to_wait_on() {
    let (address, server) = serve(StreamOptions::default(), drop);
    let mut client = connect(&address, StreamOptions::default());
    assert_eq!(client.set_nonblocking(true).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(client.pollable_fd().is_err());
    server.join().unwrap();
}

#[test]
fn a_stream_that_opened_late_is_served() {
    let options = StreamOptions::default().connect_timeout(Duration::ZERO);
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options).unwrap();
    listener.set_nonblocking(true);
    let address = listener.address().unwrap().to_string();
    let client = thread::spawn(move || {
        let options = StreamOptions::default().connect_timeout(LONG);
        // Repeats until a request has arrived before the listener polls.
        let mut socket = loop {
            if let Ok(socket) = StreamSocket::connect(&nic(), &*address, options.clone()) {
                break socket;
            }
        };
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
    });
    while !client.is_finished() {
        thread::sleep(Duration::from_millis(20));
        match listener.accept() {
            Ok(mut socket) => {
                socket.read_exact(&mut [0]).unwrap();
                socket.write_all(b"y").unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    client.join().unwrap();
}

/// Variable that makes the test binary a child process, which writes some bytes and then waits to be killed.
const CHILD: &str = "FARCALL_STREAM_TEST_CHILD";

#[test]
fn child_writes_and_waits() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let mut socket = connect(&address, StreamOptions::default().config(StreamConfig::default()));
    socket.write_all(&bytes_at(0, 10_000)).unwrap();
    let _ = socket.read(&mut [0; 1]);
    unreachable!("nobody answers");
}

fn child(address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_and_waits"])
        .env(CHILD, address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_is_a_reset_after_what_it_wrote() {
    for options in waits() {
        let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options).unwrap();
        let mut child = child(&listener.address().unwrap().to_string());
        let mut socket = listener.accept().unwrap();
        let mut got = vec![0; 10_000];
        socket.read_exact(&mut got).unwrap();
        assert!(got == bytes_at(0, 10_000));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(socket.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(socket.write(&[0; 1]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

//! Resources of ten thousand idle streams at one server, also after some of them were busy. The server is a separate
//! process, whose memory and descriptors are counted. `FARCALL_STREAMS` sets another number.

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farcall_link::WaitStrategy;
use farcall_stream::{StreamListener, StreamOptions, StreamSet, StreamSocket};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use support::nic;

const STREAMS: usize = 10_000;
/// Maximum memory of the server with all streams.
const MEMORY_BYTES_MAX: u64 = 1_000_000_000;
/// Number of busy streams, and the bytes that each transfers at once: its ring grows to the maximum.
const BUSY: usize = 50;
const BUSY_BYTES: usize = 8 << 20;
/// The server replies to each byte of this value.
const ASK: u8 = 0xff;
/// Maximum number of descriptors of a process that do not belong to streams.
const DESCRIPTORS_BESIDE: u64 = 100;
/// Maximum number of descriptors per stream at a server: TCP, completion channel, epoll, timer, and shared memory,
/// which streams share.
const DESCRIPTORS_OF_STREAM: u64 = 6;
/// Timeout of the test. Not a measurement.
const LOST: Duration = Duration::from_secs(300);
const ROLE: &str = "FARCALL_STREAM_MANY";

fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

/// Entry point of the server process: serves the streams until all have ended.
#[test]
fn child_entry() {
    let Ok(streams) = std::env::var(ROLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    raise_descriptor_limit();
    let options = StreamOptions::default().pollable().connect_timeout(LOST);
    let mut listener = StreamListener::bind(&nic(), "127.0.0.1:0", options).unwrap();
    println!("say <{}>", listener.address().unwrap());
    let mut set = StreamSet::new(WaitStrategy::EventBatch).unwrap();
    for _ in 0..streams.parse().unwrap() {
        set.insert(listener.accept().unwrap()).unwrap();
    }
    let mut owed = vec![0; set.len()];
    let (mut ready, mut bytes) = (Vec::new(), vec![0; 64 << 10]);
    while !set.is_empty() {
        set.wait(&mut ready, None).unwrap();
        for at in ready.iter().copied() {
            match serve(set.socket(at).unwrap(), &mut bytes, &mut owed[at]) {
                Ok(()) => set.remove(at),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    }
}

/// Serves a stream until its end, or until an operation would block.
fn serve(socket: &mut StreamSocket, bytes: &mut [u8], owed: &mut usize) -> io::Result<()> {
    loop {
        if *owed > 0 {
            *owed -= socket.write(&vec![ASK; *owed])?;
            continue;
        }
        match socket.read(bytes)? {
            0 => return Ok(()),
            count => *owed = bytes[..count].iter().filter(|byte| **byte == ASK).count(),
        }
    }
}

/// The server process and its output; killed on drop.
struct Server(Child, #[expect(dead_code, reason = "it must stay open")] Lines<BufReader<ChildStdout>>);

impl Server {
    /// Returns the server and its address.
    fn start(streams: usize) -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture"])
            .env(ROLE, streams.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let (_, rest) = line.as_ref().unwrap().split_once("say <")?;
            Some(rest.split_once('>').unwrap().0.to_owned())
        });
        (Self(process, lines), address.unwrap())
    }

    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.id())
    }

    /// Returns its private memory and all shared memory that it has open, including that of its clients.
    fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let own: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
        let open = fs::read_dir(self.proc("fd")).unwrap().flatten().map(|entry| entry.path());
        let memory = open.filter(|fd| {
            fs::read_link(fd).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
        });
        let files = memory.filter_map(|fd| fs::metadata(fd).ok());
        let shared: HashMap<u64, u64> = files.map(|file| (file.ino(), file.blocks() * 512)).collect();
        own * 1_024 + shared.values().sum::<u64>()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(socket: &mut StreamSocket, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
    let mut answer = [0];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [ASK]);
}

/// A single test, because it counts resources of a process.
#[test]
#[ignore = "takes minutes in debug: cargo test --profile release-test -- --ignored"]
fn ten_thousand_idle_streams_take_a_server_less_than_a_gigabyte() {
    let wanted = std::env::var("FARCALL_STREAMS").map_or(STREAMS, |streams| streams.parse().unwrap());
    let most = (raise_descriptor_limit() - DESCRIPTORS_BESIDE) / DESCRIPTORS_OF_STREAM;
    let streams = wanted.min(most as usize);
    if streams < wanted {
        println!(
            "{streams} streams instead of {wanted}: more need a higher hard limit of descriptors (ulimit -Hn)"
        );
    }
    let memory_max = MEMORY_BYTES_MAX / STREAMS as u64 * streams as u64;
    let (mut server, address) = Server::start(streams);
    let nic = nic();
    let options = StreamOptions::default().waiting(WaitStrategy::EventBatch).connect_timeout(LOST);
    let connect = |_| StreamSocket::connect(&nic, &address, options.clone()).unwrap();
    let mut sockets: Vec<_> = (0..streams).map(connect).collect();
    sockets.iter_mut().for_each(|socket| ask(socket, &[ASK]));
    let idle = server.memory_bytes();
    println!(
        "{streams} idle streams: {} B of the server's memory and {:.1} descriptors each",
        idle / streams as u64,
        server.descriptors() as f64 / streams as f64
    );
    assert!(idle < memory_max, "{idle} bytes are more than {memory_max}");

    let mut bytes = vec![0; BUSY_BYTES];
    *bytes.last_mut().unwrap() = ASK;
    let busy = BUSY.min(streams);
    sockets[..busy].iter_mut().for_each(|socket| ask(socket, &bytes));
    let after = server.memory_bytes();
    println!("{busy} of them after {BUSY_BYTES} B each: {} B more each", (after - idle) / busy as u64);
    let start = Instant::now();
    loop {
        // Longer rings are released after a second without bytes; the owner of the last writer's ring does that in its
        // calls.
        thread::sleep(Duration::from_millis(1_500));
        sockets[..busy].iter_mut().for_each(|socket| ask(socket, &[ASK]));
        let now = server.memory_bytes();
        if now < idle + (after - idle) / 4 {
            println!("and idle again: {} B more each", now.saturating_sub(idle) / busy as u64);
            break;
        }
        assert!(
            start.elapsed() < LOST,
            "{now} bytes: rings are not given back ({idle} before, {after} then)"
        );
    }
    drop(sockets);
    assert!(server.0.wait().unwrap().success());
}

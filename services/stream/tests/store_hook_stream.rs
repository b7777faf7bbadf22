//! Kills one end of a stream, or stops it for a while, before its n-th store to shared memory, for every n. The other
//! end must read the bytes written before and then an error, or the complete stream.

#[path = "../../../tests/support/store_step.rs"]
mod store_step;
mod support;

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farcall_link::WaitStrategy;
use farcall_softnic::arm_store_hook;
use farcall_stream::{StreamConfig, StreamListener, StreamOptions, StreamSocket};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};
use store_step::store_step;
use support::{bytes_at, nic};

/// Timeout of the test. Not a measurement.
const LOST: Duration = Duration::from_secs(30);
/// Lengths of the messages sent back and forth: short ones, and some that fill the ring until it grows.
const PIECES: [usize; 8] = [1, 9_000, 64, 9_000, 700, 20_000, 3, 5_000];
/// Positions from which the contents of the two streams are generated: they differ everywhere.
const BYTES_OF_VICTIM: u64 = 0;
const BYTES_OF_SURVIVOR: u64 = 1 << 40;
const RUN: &str = "FARCALL_STREAM_STORE_HOOK";

/// Parameters of a run: its number determines the store and the behaviour of the ends.
#[derive(Clone, Copy)]
struct Run {
    nth: u64,
    signal: Signal,
}

impl Run {
    /// Returns whether the victim connects and the survivor listens.
    const fn victim_connects(self) -> bool {
        self.nth.is_multiple_of(2)
    }

    fn options(self) -> StreamOptions {
        let config = StreamConfig::default().ring_bytes(4 << 10).ring_bytes_max(64 << 10);
        let waiting =
            if self.nth & 2 == 0 { WaitStrategy::EventBatch } else { StreamOptions::default().waiting };
        StreamOptions::default().config(config).waiting(waiting).connect_timeout(LOST).linger(LOST)
    }
}

/// Entry point of the victim process.
#[test]
fn child_entry() {
    let Ok(run) = std::env::var(RUN) else { return };
    let mut numbers = run.split(' ').map(|number| number.parse::<u64>().unwrap());
    let (nth, signal) = (numbers.next().unwrap(), numbers.next().unwrap() as i32);
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let run = Run { nth, signal: Signal::from_named_raw(signal).unwrap() };
    let mut line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    victim(run, &mut line).unwrap();
}

fn victim(run: Run, line: &mut UnixStream) -> io::Result<()> {
    let nic = nic();
    let mut socket = if run.victim_connects() {
        let to = SocketAddr::from(([127, 0, 0, 1], hear(line)? as u16));
        assert!(arm_store_hook(run.nth, run.signal.as_raw()));
        StreamSocket::connect(&nic, to, run.options())?
    } else {
        let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", run.options())?;
        say(line, listener.address()?.port().into())?;
        assert!(arm_store_hook(run.nth, run.signal.as_raw()));
        listener.accept()?
    };
    let mut position = 0;
    for len in PIECES {
        socket.write_all(&bytes_at(BYTES_OF_VICTIM + position, len))?;
        let mut reply = vec![0; len];
        socket.read_exact(&mut reply)?;
        assert!(reply == bytes_at(BYTES_OF_SURVIVOR + position, len), "at {position}");
        position += len as u64;
    }
    socket.finish()?;
    assert_eq!(socket.read(&mut [0])?, 0);
    socket.close(LOST)
}

fn say(line: &mut UnixStream, number: u64) -> io::Result<()> {
    line.write_all(&number.to_le_bytes())
}

fn hear(line: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    line.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The victim process, from the survivor's side; killed on drop.
struct Victim {
    process: Child,
    line: UnixStream,
}

impl Victim {
    fn start(run: Run) -> Self {
        let (line, theirs) = UnixStream::pair().unwrap();
        line.set_read_timeout(Some(LOST)).unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture"])
            .env(RUN, format!("{} {}", run.nth, run.signal.as_raw()))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, line }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Waits until it has exited.
    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LOST, "the victim neither dies nor ends");
            thread::yield_now();
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Resumes a process a moment after it has stopped; returns when it is stopped or has exited.
fn wake(pid: Pid) {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    // The other thread may reap it concurrently.
    let stopped = waitid(WaitId::Pid(pid), options).ok().flatten().is_some_and(|status| status.stopped());
    if stopped {
        thread::sleep(Duration::from_millis(5));
        kill_process(pid, Signal::CONT).unwrap();
    }
}

/// How the survivor's stream ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// No stream was opened: the victim was killed before.
    NeverOpened,
    /// With an error.
    Broken,
    /// With the end of the stream, after this number of bytes.
    Whole(u64),
}

fn survivor(run: Run, victim: &mut Victim) -> End {
    let nic = nic();
    let mut socket = if run.victim_connects() {
        let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", run.options()).unwrap();
        listener.set_nonblocking(true);
        if say(&mut victim.line, listener.address().unwrap().port().into()).is_err() {
            return End::NeverOpened;
        }
        match accept(&mut listener, victim) {
            Some(socket) => socket,
            None => return End::NeverOpened,
        }
    } else {
        let Ok(port) = hear(&mut victim.line) else { return End::NeverOpened };
        match StreamSocket::connect(&nic, ("127.0.0.1", port as u16), run.options()) {
            Ok(socket) => socket,
            Err(error) => {
                assert_ne!(io::Error::from(error).kind(), ErrorKind::TimedOut);
                return End::NeverOpened;
            }
        }
    };
    socket.set_timeouts(Some(LOST), Some(LOST));
    let mut position = 0;
    match serve(&mut socket, &mut position) {
        Ok(()) => End::Whole(position),
        Err(error) => {
            let expected = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(expected.contains(&error.kind()), "{error} after byte {position}");
            // A write may fail while bytes can still be read.
            match read_to(&mut socket, &mut position, u64::MAX) {
                Ok(()) => End::Whole(position),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error} after byte {position}");
                    End::Broken
                }
            }
        }
    }
}

/// Accepts the stream of a victim that is not killed before it requests one.
fn accept(listener: &mut StreamListener, victim: &mut Victim) -> Option<StreamSocket> {
    let start = Instant::now();
    loop {
        let is_dead = victim.process.try_wait().unwrap().is_some();
        match listener.accept() {
            Ok(socket) => return Some(socket),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if is_dead {
            return None;
        }
        assert!(start.elapsed() < LOST, "the victim neither connects nor dies");
        thread::yield_now();
    }
}

/// Reads each message and replies to it, up to the end.
fn serve(socket: &mut StreamSocket, position: &mut u64) -> io::Result<()> {
    for len in PIECES {
        let begin = *position;
        read_to(socket, position, begin + len as u64)?;
        socket.write_all(&bytes_at(BYTES_OF_SURVIVOR + begin, len))?;
    }
    socket.finish()?;
    read_to(socket, position, u64::MAX)
}

/// Reads and checks bytes up to a position, or the end.
fn read_to(socket: &mut StreamSocket, position: &mut u64, end: u64) -> io::Result<()> {
    let mut bytes = vec![0; 30_000];
    while *position < end {
        let most = (end - *position).min(bytes.len() as u64) as usize;
        let got = socket.read(&mut bytes[..most])?;
        assert!(bytes[..got] == bytes_at(BYTES_OF_VICTIM + *position, got), "wrong bytes after {position}");
        *position += got as u64;
        if got == 0 {
            break;
        }
    }
    Ok(())
}

/// Executes a run. Returns whether the victim exited by itself.
fn run(run: Run) -> bool {
    let mut victim = Victim::start(run);
    let pid = victim.pid();
    let (end, status) = thread::scope(|scope| {
        if run.signal == Signal::STOP {
            scope.spawn(move || wake(pid));
        }
        let end = survivor(run, &mut victim);
        (end, victim.end())
    });
    let (nth, all) = (run.nth, PIECES.iter().sum::<usize>() as u64);
    if run.signal == Signal::STOP {
        assert!(status.success(), "store {nth}: a stopped end does not end well: {status}");
    }
    if let End::Whole(got) = end {
        assert_eq!(got, all, "store {nth}: an end that comes early");
    }
    if status.success() {
        assert_eq!(end, End::Whole(all), "store {nth}: {status}");
    }
    status.success()
}

/// Covers all stores: the last one is reached when the victim exits by itself.
#[test]
#[ignore = "takes minutes in debug: cargo test --profile release-test -- --ignored"]
fn delivers_a_prefix_and_an_error_after_a_kill_at_any_store() {
    let (mut nth, mut ends) = (0, 0);
    while ends < 10 {
        nth += store_step();
        ends = if run(Run { nth, signal: Signal::KILL }) { ends + 1 } else { 0 };
    }
    println!("{nth} stores");
    assert!(nth > 50, "the victim stores more often than that");
}

#[test]
#[ignore = "takes minutes in debug: cargo test --profile release-test -- --ignored"]
fn a_stream_whose_end_stops_for_a_while_at_any_store_is_exact() {
    for nth in (1..300).step_by(store_step() as usize) {
        run(Run { nth, signal: Signal::STOP });
    }
}

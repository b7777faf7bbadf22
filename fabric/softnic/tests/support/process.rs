//! Other processes for tests: the test binary starts itself again, with a role and a line for communication.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::process::{Command, Stdio};
use std::time::Instant;

use farcall_verbs::{Error, Mtu, QpAttr, QpState};

use super::{ALL, End, LOST, QpCap, name_in_program};

const ROLE: &str = "FARCALL_TEST_ROLE";
const ARGS: &str = "FARCALL_TEST_ARGS";

/// Connection that carries words between two processes.
pub struct Line(UnixStream);

impl Line {
    pub fn say(&mut self, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // The exit of a peer is detected elsewhere.
        let _ = self.0.write_all(&bytes);
    }

    /// Returns `None` if the other end has closed the line.
    pub fn hear(&mut self) -> Option<[u64; 4]> {
        let mut bytes = [0; 32];
        self.0.read_exact(&mut bytes).ok()?;
        Some(std::array::from_fn(|i| {
            u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("eight bytes"))
        }))
    }
}

/// Another process; killed when dropped.
pub struct Other {
    process: std::process::Child,
    pub line: Line,
}

/// Starts this test binary again; the test `child_entry` of the caller's file runs the role.
#[track_caller]
pub fn start(role: &str, args: &[u64]) -> Other {
    start_with(role, args, &[])
}

/// Like [`start`], with additional environment variables.
#[track_caller]
pub fn start_with(role: &str, args: &[u64], environment: &[(&str, &std::path::Path)]) -> Other {
    start_under(&[], role, args, environment)
}

/// Like [`start_with`], as the command of another program (`unshare`), and killed with it.
#[track_caller]
pub fn start_under(
    command: &[&str],
    role: &str,
    args: &[u64],
    environment: &[(&str, &std::path::Path)],
) -> Other {
    let entry = name_in_program(Location::caller(), "child_entry");
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LOST)).unwrap();
    let args: Vec<String> = args.iter().map(u64::to_string).collect();
    let this = std::env::current_exe().unwrap();
    let mut started = match command {
        // Works even if this user may not access the path of the binary.
        [] => Command::new("/proc/self/exe"),
        [program, rest @ ..] => {
            let mut under = Command::new(program);
            under.args(rest).arg(this);
            under
        }
    };
    let process = started
        .args(["--exact", &entry, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ARGS, args.join(","))
        .envs(environment.iter().copied())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Other { process, line: Line(ours) }
}

/// In a started process: returns its role, arguments and line. The process is killed when its parent exits.
pub fn role() -> Option<(String, Vec<u64>, Line)> {
    let role = std::env::var(ROLE).ok()?;
    // SAFETY: the call has two integer arguments.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let args = std::env::var(ARGS).unwrap_or_default();
    let args = args.split(',').filter_map(|a| a.parse().ok()).collect();
    // SAFETY: `start` has connected standard input to the line, and no other code in this process uses it.
    let line = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    Some((role, args, Line(line)))
}

/// Runs `work` in a forked child, without exec. Returns its exit code: 0 if it did not panic.
pub fn in_child(work: impl FnOnce()) -> i32 {
    in_child_while(work, || ())
}

/// Like [`in_child`]; the parent runs `meanwhile`. The child is killed when its parent exits.
pub fn in_child_while(work: impl FnOnce(), meanwhile: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work` and exits; no other thread of this process holds a lock that it needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: the call has two integer arguments.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child here, so that no part of the test runs twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    meanwhile();
    let mut status = 0;
    // SAFETY: the process is a child of this one, and was not waited for yet.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Runs,
    Stopped,
    Exited(i32),
    Killed(i32),
}

impl Other {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is a child of this one, and was not waited for yet.
        unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
    }

    /// Stops the process, and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        assert_eq!(self.wait(), ProcessState::Stopped);
    }

    /// Kills the process, and waits until it has exited.
    pub fn end(&self) {
        self.kill();
        assert_eq!(self.wait(), ProcessState::Killed(libc::SIGKILL));
    }

    /// Returns its message after work that may take long on a busy machine. The process exits when an operation that it
    /// waits for is lost, and the line is then closed.
    pub fn hear_in_the_end(&mut self) -> Option<[u64; 4]> {
        self.line.0.set_read_timeout(None).unwrap();
        self.line.hear()
    }

    /// Returns the state without reaping or waiting.
    pub fn state(&self) -> ProcessState {
        // SAFETY: an all-zero siginfo is valid, and the kernel fills it.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_PID, self.process.id(), &raw mut info, flags) != 0 || info.si_pid() == 0 {
                return ProcessState::Runs;
            }
            match info.si_code {
                libc::CLD_EXITED => ProcessState::Exited(info.si_status()),
                libc::CLD_STOPPED => ProcessState::Stopped,
                _ => ProcessState::Killed(info.si_status()),
            }
        }
    }

    /// Waits until the process no longer runs.
    pub fn wait(&self) -> ProcessState {
        let start = Instant::now();
        loop {
            let state = self.state();
            if state != ProcessState::Runs {
                return state;
            }
            assert!(start.elapsed() < LOST, "the other process neither ends nor stops");
            std::thread::yield_now();
        }
    }

    /// Waits until the process has exited; a stop does not count.
    pub fn wait_for_end(&self) -> ProcessState {
        let start = Instant::now();
        loop {
            match self.wait() {
                ProcessState::Stopped => assert!(start.elapsed() < LOST, "the other process does not end"),
                state => return state,
            }
            std::thread::yield_now();
        }
    }

    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a number from the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Message of an end to the other: queue pair, memory, key.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub qpn: u32,
    pub addr: u64,
    pub rkey: u32,
}

pub fn tell(line: &mut Line, end: &End) {
    line.say([end.qp.qp_num().into(), end.mr.addr() as u64, end.mr.rkey().into(), 0]);
}

pub fn learn(line: &mut Line) -> Option<Address> {
    let [qpn, addr, rkey, _] = line.hear()?;
    Some(Address { qpn: qpn as u32, addr, rkey: rkey as u32 })
}

/// On both sides: creates an end of 1 MiB, exchanges addresses and connects. Returns `None` if the other process exited
/// or stopped in the meantime, which `modify_qp` or the line reports.
pub fn connect(line: &mut Line, cap: QpCap) -> Option<(End, Address)> {
    connect_by(line, cap, End::rts)
}

/// Like [`connect`]; `rts` brings the end to RTS.
pub fn connect_by(line: &mut Line, cap: QpCap, rts: impl Fn(&mut End)) -> Option<(End, Address)> {
    let mut end = End::new(1 << 20, ALL, cap);
    end.init();
    tell(line, &end);
    let to = learn(line)?;
    let rtr = QpAttr::rtr(to.qpn, 0, end.path(), Mtu::Mtu4096);
    if let Err(error) = end.qp.modify(&rtr) {
        assert!(matches!(error, Error::Peer { .. } | Error::Os { .. }), "{error}");
        assert_eq!(end.qp.state(), QpState::Init, "a refused transition changed the state");
        return None;
    }
    rts(&mut end);
    Some((end, to))
}

impl Line {
    /// Returns the socket, for waiting on it.
    pub fn raw(&self) -> &UnixStream {
        &self.0
    }
}

//! Other processes for tests: the test binary starts itself again, with a role and a line to talk over.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use farcall_verbs::{Error, Mtu, QpAttr, QpState};

use super::{ALL, End, LOST, QpCap};

const ROLE: &str = "FARCALL_TEST_ROLE";
const ARGS: &str = "FARCALL_TEST_ARGS";

/// Words between two processes.
pub struct Line(UnixStream);

impl Line {
    pub fn say(&mut self, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // A peer that died is noticed otherwise.
        let _ = self.0.write_all(&bytes);
    }

    /// `None` if the other end is gone.
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

/// Starts this test binary again; its test `child_entry` takes the role.
pub fn start(role: &str, args: &[u64]) -> Other {
    start_with(role, args, &[])
}

/// As [`start`], with more environment.
pub fn start_with(role: &str, args: &[u64], environment: &[(&str, &std::path::Path)]) -> Other {
    start_under(&[], role, args, environment)
}

/// As [`start_with`], as the command of another one (`unshare`), which dies with it.
pub fn start_under(
    command: &[&str],
    role: &str,
    args: &[u64],
    environment: &[(&str, &std::path::Path)],
) -> Other {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LOST)).unwrap();
    let args: Vec<String> = args.iter().map(u64::to_string).collect();
    let this = std::env::current_exe().unwrap();
    let mut started = match command {
        // Also if its path is closed to us: as another user.
        [] => Command::new("/proc/self/exe"),
        [program, rest @ ..] => {
            let mut under = Command::new(program);
            under.args(rest).arg(this);
            under
        }
    };
    let process = started
        .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ARGS, args.join(","))
        .envs(environment.iter().copied())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Other { process, line: Line(ours) }
}

/// In a started process: its role, arguments and line. It dies with its parent.
pub fn role() -> Option<(String, Vec<u64>, Line)> {
    let role = std::env::var(ROLE).ok()?;
    // SAFETY: two integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let args = std::env::var(ARGS).unwrap_or_default();
    let args = args.split(',').filter_map(|a| a.parse().ok()).collect();
    // SAFETY: `start` put the line there, and nothing else in this process uses standard input.
    let line = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    Some((role, args, Line(line)))
}

/// Runs `work` in a forked child, without exec, and returns its exit code; 0 if it did not panic.
pub fn in_child(work: impl FnOnce()) -> i32 {
    in_child_while(work, || ())
}

/// As [`in_child`]; the parent does `meanwhile`. The child dies with its parent.
pub fn in_child_while(work: impl FnOnce(), meanwhile: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work` and ends; no other thread of this process holds a lock that it needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: two integers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child here: nothing of the test goes on twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    meanwhile();
    let mut status = 0;
    // SAFETY: our own child, not yet waited for.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// What has become of a process.
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
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
    }

    /// Stops it, and waits until it is.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        assert_eq!(self.wait(), ProcessState::Stopped);
    }

    /// Kills it, and waits until it has ended.
    pub fn end(&self) {
        self.kill();
        assert_eq!(self.wait(), ProcessState::Killed(libc::SIGKILL));
    }

    /// What it says after work that may take long on a busy machine. It ends when something that it waits for is lost,
    /// and its line with it.
    pub fn hear_in_the_end(&mut self) -> Option<[u64; 4]> {
        self.line.0.set_read_timeout(None).unwrap();
        self.line.hear()
    }

    /// Looks without reaping or waiting.
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

    /// Waits until it no longer runs.
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

    /// Waits until it has ended; being stopped is no end.
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

/// A number of the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What an end tells the other: queue pair, memory, key.
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

/// Both sides: makes an end of 1 MiB, exchanges addresses and connects; `None` if the other died or stopped meanwhile,
/// which `modify_qp` or the line told.
pub fn connect(line: &mut Line, cap: QpCap) -> Option<(End, Address)> {
    connect_by(line, cap, End::rts)
}

/// As [`connect`], to RTS by `rts`.
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
    /// The socket, to wait for.
    pub fn raw(&self) -> &UnixStream {
        &self.0
    }
}

//! A child process: pinned, killed when its parent exits or when it is dropped.

use super::PeerError;
use crate::measure::keep_thread_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the state of a child is queried.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running child, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct ChildProcess(pub(crate) Child);

impl ChildProcess {
    /// Starts `command` on `cores`. The child inherits `fds` under the same numbers. The kernel kills it when the
    /// calling thread exits.
    pub(crate) fn start(
        command: &mut Command,
        cores: &[usize],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Self, PeerError> {
        let inherited: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let cores = cores.to_vec();
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
        unsafe { command.pre_exec(move || prepare_child(&inherited, &cores)) };
        let program = PathBuf::from(command.get_program());
        command.spawn().map(Self).map_err(|source| PeerError::Start { program, source })
    }

    /// Returns whether the process has not exited.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until `is_serving`. If the process exits before, or does not serve within `patience`, the error states it.
    pub(crate) fn wait_until_serving(
        &mut self,
        patience: Duration,
        is_serving: impl Fn() -> bool,
    ) -> Result<(), &'static str> {
        let deadline = Instant::now() + patience;
        while !is_serving() {
            if !self.is_alive() {
                return Err("ended before it served");
            }
            if Instant::now() > deadline {
                return Err("takes no connections");
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns its exit status, or `None` if it does not exit within `patience`.
    pub(crate) fn wait_until_ended(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            let ended = self.0.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                return Ok(ended);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns ports of the loopback interface that are currently free, for children that listen on a given port.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N], PeerError> {
    let mut ports = [0; N];
    // The listeners are retained until all ports are chosen, so that no port is returned twice.
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(PeerError::system("bind"))?;
        *port = listener.local_addr().map_err(PeerError::system("getsockname"))?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Returns the next line that a child writes, or an empty string once it has closed its output. Returns `TimedOut` if
/// there is no line within `patience`.
pub(crate) fn next_line(output: &mut BufReader<ChildStdout>, patience: Duration) -> io::Result<String> {
    /// Maximum length of an expected line in bytes.
    const LINE_LEN_BYTES_MAX: u64 = 64 << 10;
    let begun = Instant::now();
    while output.buffer().is_empty() {
        let left = patience.saturating_sub(begun.elapsed());
        let mut fds = [PollFd::new(output.get_ref(), PollFlags::IN)];
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut line = String::new();
    output.take(LINE_LEN_BYTES_MAX).read_line(&mut line)?;
    Ok(line)
}

/// Makes the descriptors inheritable across exec, and makes the kernel kill the child when its parent exits.
fn prepare_child(fds: &[RawFd], cores: &[usize]) -> io::Result<()> {
    for fd in fds {
        // SAFETY: the parent keeps these descriptors open until `spawn` returns, so the number refers to an open
        // descriptor here.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // SAFETY: `signal` is async-signal-safe and SIG_IGN is a valid disposition. SIGINT is ignored because Ctrl-C
    // reaches the process group, and the parent decides how to react.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    keep_thread_on(cores).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Takes ownership of an inherited descriptor after checking that it is open.
pub(crate) fn adopt(fd: RawFd) -> Result<OwnedFd, PeerError> {
    if fd <= 2 {
        return Err(PeerError::Task("naming a standard stream"));
    }
    // SAFETY: borrowed only for the `fcntl` query below, which reports a number that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(borrowed).map_err(PeerError::system("fcntl"))?;
    // SAFETY: the query above succeeded, so the descriptor is open; it was inherited for this purpose, and no other
    // object of this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_come_is_not_waited_for_longer() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo first; echo second; exec sleep 60"]).stdout(std::process::Stdio::piped());
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let mut child = ChildProcess::start(&mut command, &[core], &[]).unwrap();
        let mut output = BufReader::new(child.0.stdout.take().unwrap());
        for line in ["first\n", "second\n"] {
            assert_eq!(next_line(&mut output, Duration::from_secs(60)).unwrap(), line);
        }
        let late = next_line(&mut output, Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        child.0.kill().unwrap();
        assert_eq!(next_line(&mut output, Duration::from_secs(60)).unwrap(), "", "it has ended");
    }

    #[test]
    fn descriptors_that_are_none_are_refused() {
        assert!(matches!(adopt(1), Err(PeerError::Task(_))));
        assert!(matches!(adopt(987_654), Err(PeerError::System { .. })));
    }
}

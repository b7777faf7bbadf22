//! `farcall conform --listen`: the other end for suites on other hosts.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;

/// Interval between two checks for signals and for the end of a suite.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Number of checks whether an agent exits whose suite may have ended, and pause between them.
const EXIT_CHECKS: u32 = 100;
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Runs an agent for each suite, one at a time, until a stop is requested. `agent` creates the command of an agent.
///
/// # Errors
/// If the address cannot be bound.
pub fn listen(
    address: SocketAddr,
    console: Console,
    agent: impl Fn() -> Result<Command, Failure>,
) -> Result<Exit, Failure> {
    let stop = StopFlag::install()?;
    let failed = |error: io::Error| {
        let failure = Failure::because("cannot listen for suites", &error).at(address);
        failure.remedy("choose another address with --listen, or stop the process that uses this one")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let (address, pid) = (listener.local_addr().map_err(failed)?, std::process::id());
    let text = format!(
        "other end on {address} (pid {pid}); at the other host: farcall conform --connect HOST:{}",
        address.port()
    );
    console.print_line(&text, &json!({ "listening": address, "pid": pid }))?;
    let mut running: Option<Running> = None;
    while !stop.is_raised() {
        // A signal ends the wait early.
        let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&CHECK_INTERVAL));
        match listener.accept() {
            Ok((_, from)) if running.as_mut().is_some_and(Running::is_running) => {
                eprintln!("{from}: refused, because a suite is running");
            }
            Ok((line, from)) => match agent().and_then(|agent| Running::start(line, agent)) {
                Ok(started) => {
                    eprintln!("{from}: a suite begins");
                    running = Some(started);
                }
                Err(error) => eprintln!("{from}: {error}"),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                eprintln!("cannot accept a connection: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
    Ok(Exit::Success)
}

/// The agent of a suite. Dropping it kills the agent.
struct Running(Child);

impl Running {
    fn start(line: TcpStream, mut agent: Command) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::because("cannot start the other end", &error);
        line.set_nonblocking(false).and_then(|()| line.set_nodelay(true)).map_err(failed)?;
        agent.stdin(Stdio::from(OwnedFd::from(line))).stdout(Stdio::null());
        agent.spawn().map(Self).map_err(failed)
    }

    /// Returns whether the agent is still running; waits briefly for one whose suite has ended.
    fn is_running(&mut self) -> bool {
        (0..EXIT_CHECKS).all(|_| {
            std::thread::sleep(EXIT_CHECK_INTERVAL);
            matches!(self.0.try_wait(), Ok(None))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

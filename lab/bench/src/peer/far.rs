//! The client half: what it says to a server half on another host, and what that answers.
//!
//! Each TCP connection begins with a line from both sides, then carries one wish and its answer. The first wish begins
//! a run, which lasts as long as any of its connections; a process at the other host lives as long as the connection
//! that asked for it. A peer's connection is its control stream from then on.

use super::control::{Control, receive, send};
use super::{Order, Peer, PeerError, PeerTask, Process};
use crate::experiments::server::{Ready, Service};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Changes with everything that the two halves say to each other.
const PROTOCOL: u32 = 2;
/// No greeting is longer.
const GREETING_LEN_BYTES_MAX: usize = 64;
/// How long connecting and greeting may take.
pub(super) const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// How long anything else may take: a server starts, a task ends.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Of conditions that another host tells, and of what a stranger says, so many characters are shown.
const FOREIGN_LEN_MAX: usize = 200;

/// What a connection is for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Wish {
    /// Begin a run. Answered by [`Begun`].
    Run,
    /// Start a peer. Answered by its number.
    Peer {
        /// The run.
        run: u64,
        /// What it is to do.
        order: Order,
    },
    /// Start a server. Answered by its number and [`Ready`].
    Serve {
        /// The run.
        run: u64,
        /// What it serves.
        service: Service,
    },
    /// Tell the CPU time that a process has used. Answered by a [`Duration`].
    CpuTime {
        /// The run.
        run: u64,
        /// The number of its process.
        process: u32,
    },
}

/// A run has begun.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    /// Names the run; nobody else knows it.
    pub(super) run: u64,
    /// What is true of the server half's host.
    pub(super) about: Vec<(String, String)>,
}

/// Ends a server in good order. Answered by why it did not, if so.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StopServer;

/// A run at a server half: where to start processes, as plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Far {
    address: SocketAddr,
    run: u64,
}

/// A process at the server half, which lives as long as the control stream that came with it.
#[derive(Debug, Clone)]
pub(crate) struct FarProcess {
    far: Far,
    number: u32,
}

/// A run at a server half, until it is dropped.
#[derive(Debug)]
pub struct Run {
    far: Far,
    about: Vec<(String, String)>,
    control: Control,
}

impl Run {
    /// Begins a run at the server half that listens on `address`.
    ///
    /// # Errors
    /// When there is none, or it is of another version or busy.
    pub fn begin(address: SocketAddr) -> Result<Self, PeerError> {
        let (Begun { run, about }, control) = ask(address, &Wish::Run)?;
        let about = about.into_iter().map(|(name, value)| (shown(&name), shown(&value))).collect();
        Ok(Self { far: Far { address, run }, about, control })
    }

    /// Where its processes are started.
    #[must_use]
    pub fn far(&self) -> &Far {
        &self.far
    }

    /// What is true of the server half's host.
    #[must_use]
    pub fn about(&self) -> &[(String, String)] {
        &self.about
    }

    /// Whether the server half is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.control.is_closed()
    }
}

impl Far {
    /// The server half's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a peer and waits until it is ready.
    pub(super) fn peer<T: PeerTask>(&self, task: &T) -> Result<Peer, PeerError> {
        let wish = Wish::Peer { run: self.run, order: Order::of(task)? };
        let (number, control) = ask(self.address, &wish)?;
        let process = Process::There(FarProcess { far: self.clone(), number });
        Peer { process, control }.when_ready()
    }

    /// Starts a server.
    pub(crate) fn serve(&self, service: &Service) -> Result<(FarProcess, Control, Ready), PeerError> {
        let wish = Wish::Serve { run: self.run, service: service.clone() };
        let ((number, ready), control) = ask(self.address, &wish)?;
        Ok((FarProcess { far: self.clone(), number }, control, ready))
    }
}

impl FarProcess {
    /// The CPU time that it has used, by the server half's word.
    pub(crate) fn cpu_time(&self) -> Result<Duration, PeerError> {
        let wish = Wish::CpuTime { run: self.far.run, process: self.number };
        ask(self.far.address, &wish).map(|(time, _)| time)
    }
}

/// Asks a server to end, and waits for that.
pub(crate) fn stop_server(control: &Control) -> Result<(), PeerError> {
    send(control, &StopServer).map_err(|_| PeerError::Ended)?;
    let stopped: Result<(), String> = receive(control).map_err(|_| PeerError::Ended)?;
    stopped.map_err(PeerError::Part)
}

/// Connects, says what is wished, and waits for the answer.
fn ask<T: DeserializeOwned>(address: SocketAddr, wish: &Wish) -> Result<(T, Control), PeerError> {
    let unreachable = |source| PeerError::Unreachable { address, source };
    let stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE).map_err(unreachable)?;
    let control = Control::of_tcp(stream).map_err(unreachable)?;
    control.set_patience(Some(GREETING_PATIENCE)).map_err(unreachable)?;
    (&control).write_all(greeting().as_bytes()).map_err(unreachable)?;
    let said =
        read_greeting(&control).map_err(|_| PeerError::Stranger { address, said: "nothing".into() })?;
    match judge(&said) {
        Greeted::Alike => {}
        Greeted::OtherVersion => {
            return Err(PeerError::Version { address, theirs: shown(&said), mine: shown(&greeting()) });
        }
        Greeted::Stranger => return Err(PeerError::Stranger { address, said: shown(&said) }),
    }
    control.set_patience(Some(ANSWER_PATIENCE)).map_err(unreachable)?;
    send(&control, wish)?;
    let answer: Result<T, String> =
        receive(&control).map_err(|error| PeerError::Lost { address, why: error.to_string() })?;
    let answer = answer.map_err(|why| PeerError::Refused { address, why: shown(&why) })?;
    Ok((answer, control))
}

/// What both sides say first: a line that tells what they are.
pub(super) fn greeting() -> String {
    format!("farcall-bench {PROTOCOL} {}\n", env!("CARGO_PKG_VERSION"))
}

/// What a greeting says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Greeted {
    Alike,
    OtherVersion,
    Stranger,
}

/// What to think of a greeting.
pub(super) fn judge(said: &str) -> Greeted {
    if said == greeting() {
        Greeted::Alike
    } else if said.starts_with("farcall-bench ") {
        Greeted::OtherVersion
    } else {
        Greeted::Stranger
    }
}

/// Reads a line, no more of it than a greeting may have, and not a byte of what follows it.
pub(super) fn read_greeting(mut from: impl Read) -> std::io::Result<String> {
    let mut line = Vec::new();
    while line.len() < GREETING_LEN_BYTES_MAX && line.last() != Some(&b'\n') {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Text of another host, without anything that a terminal obeys.
fn shown(text: &str) -> String {
    let is_text = |character: &char| !character.is_control();
    text.trim().chars().filter(is_text).take(FOREIGN_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_told_apart() {
        assert_eq!(judge(&greeting()), Greeted::Alike);
        assert_eq!(judge("farcall-bench 0 0.0.9\n"), Greeted::OtherVersion);
        assert_eq!(judge("HTTP/1.1 400 Bad Request\r\n"), Greeted::Stranger);
        assert!(greeting().len() <= GREETING_LEN_BYTES_MAX);
    }

    #[test]
    fn text_of_another_host_is_short_and_obeyed_by_no_terminal() {
        let long = format!("\u{1b}]0;title\u{7}{}", "x".repeat(10_000));
        let text = shown(&long);
        assert!(text.starts_with("]0;titlex") && text.len() == FOREIGN_LEN_MAX);
    }
}

//! The client half: requests to a server half on another host, and its replies.
//!
//! Each TCP connection begins with a greeting line from both sides, and then carries one request and its reply. The
//! first request begins a run, which lasts as long as any of its connections. A process at the other host exists as
//! long as the connection that requested it. The connection that requested a peer then becomes the peer's control
//! stream.

use super::control::{Control, receive, send};
use super::{Order, Peer, PeerError, PeerTask, Process};
use crate::experiments::ready::Ready;
use crate::experiments::service::Service;
use farcall_verbs::with_sources;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Protocol version; incremented with every change of the messages between the two halves.
const PROTOCOL: u32 = 3;
/// Maximum length of a greeting in bytes.
const GREETING_LEN_BYTES_MAX: usize = 64;
/// Timeout of connecting and greeting.
pub(super) const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of every other reply, such as the start of a server or the end of a task.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of characters shown of text that another host or an unknown service sent.
const FOREIGN_LEN_MAX: usize = 200;

/// Request of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum AgentRequest {
    /// Begins a run. The reply is [`Begun`].
    Run,
    /// Starts a peer. The reply is its number.
    Peer {
        /// Token of the run.
        run: u64,
        /// Task of the peer.
        order: Order,
    },
    /// Starts a server. The reply is its number and [`Ready`].
    Serve {
        /// Token of the run.
        run: u64,
        /// Service of the server.
        service: Service,
    },
    /// Requests the CPU time of a process. The reply is a [`Duration`].
    CpuTime {
        /// Token of the run.
        run: u64,
        /// Number of the process in the run.
        process: u32,
    },
}

/// Reply to the request to begin a run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    /// Token that identifies the run; only its client half knows it.
    pub(super) run: u64,
    /// Conditions of the server half's host.
    pub(super) about: Vec<(String, String)>,
}

/// Requests that a server ends in an orderly way. The reply is the error, if there was one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StopServer;

/// A run at a server half, at which processes can be started; plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAgent {
    address: SocketAddr,
    run: u64,
}

/// A process at the server half, which exists as long as the control stream that was returned with it.
#[derive(Debug, Clone)]
pub(crate) struct RemoteProcess {
    agent: RemoteAgent,
    number: u32,
}

/// A run at a server half, which ends when this is dropped.
#[derive(Debug)]
pub struct Run {
    agent: RemoteAgent,
    about: Vec<(String, String)>,
    control: Control,
}

impl Run {
    /// Begins a run at the server half that listens on `address`.
    ///
    /// # Errors
    /// Returns an error if there is no server half, or if it is of another version or busy.
    pub fn begin(address: SocketAddr) -> Result<Self, PeerError> {
        let (Begun { run, about }, control) = ask(address, &AgentRequest::Run)?;
        let about = about.into_iter().map(|(name, value)| (shown(&name), shown(&value))).collect();
        Ok(Self { agent: RemoteAgent { address, run }, about, control })
    }

    /// Returns the run, for starting processes.
    pub fn agent(&self) -> &RemoteAgent {
        &self.agent
    }

    /// Returns the conditions of the server half's host.
    pub fn about(&self) -> &[(String, String)] {
        &self.about
    }

    /// Returns whether the connection to the server half is lost.
    pub fn is_lost(&self) -> bool {
        self.control.is_closed()
    }
}

impl RemoteAgent {
    /// Returns the server half's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a peer and waits until it is ready.
    pub(super) fn peer<T: PeerTask>(&self, task: &T) -> Result<Peer, PeerError> {
        let request = AgentRequest::Peer { run: self.run, order: Order::of(task)? };
        let (number, control) = ask(self.address, &request)?;
        let process = Process::There(RemoteProcess { agent: self.clone(), number });
        Peer { process, control }.when_ready()
    }

    /// Starts a server.
    pub(crate) fn serve(&self, service: &Service) -> Result<(RemoteProcess, Control, Ready), PeerError> {
        let request = AgentRequest::Serve { run: self.run, service: service.clone() };
        let ((number, ready), control) = ask(self.address, &request)?;
        Ok((RemoteProcess { agent: self.clone(), number }, control, ready))
    }
}

impl RemoteProcess {
    /// Returns the CPU time that the process has used, as reported by the server half.
    pub(crate) fn cpu_time(&self) -> Result<Duration, PeerError> {
        let request = AgentRequest::CpuTime { run: self.agent.run, process: self.number };
        ask(self.agent.address, &request).map(|(time, _)| time)
    }
}

/// Requests that a server ends, and waits until it has ended.
pub(crate) fn stop_server(control: &Control) -> Result<(), PeerError> {
    send(control, &StopServer).map_err(|_| PeerError::Ended)?;
    let stopped: Result<(), String> = receive(control).map_err(|_| PeerError::Ended)?;
    stopped.map_err(PeerError::Part)
}

/// Connects, sends a request and waits for the reply.
fn ask<T: DeserializeOwned>(address: SocketAddr, request: &AgentRequest) -> Result<(T, Control), PeerError> {
    let unreachable = |source| PeerError::Unreachable { address, source };
    let stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE).map_err(unreachable)?;
    let control = Control::of_tcp(stream).map_err(unreachable)?;
    control.set_patience(Some(GREETING_PATIENCE)).map_err(unreachable)?;
    (&control).write_all(greeting().as_bytes()).map_err(unreachable)?;
    let said =
        read_greeting(&control).map_err(|_| PeerError::UnexpectedPeer { address, said: "nothing".into() })?;
    match check_greeting(&said) {
        GreetingCheck::Alike => {}
        GreetingCheck::OtherVersion => {
            return Err(PeerError::Version { address, theirs: shown(&said), mine: shown(&greeting()) });
        }
        GreetingCheck::UnexpectedPeer => {
            return Err(PeerError::UnexpectedPeer { address, said: shown(&said) });
        }
    }
    control.set_patience(Some(ANSWER_PATIENCE)).map_err(unreachable)?;
    send(&control, request)?;
    let answer: Result<T, String> =
        receive(&control).map_err(|error| PeerError::Lost { address, why: with_sources(&error) })?;
    let answer = answer.map_err(|why| PeerError::Refused { address, why: shown(&why) })?;
    Ok((answer, control))
}

/// Returns the line that both sides send first, which identifies program and version.
pub(super) fn greeting() -> String {
    format!("farcall-bench {PROTOCOL} {}\n", env!("CARGO_PKG_VERSION"))
}

/// Kinds of received greetings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GreetingCheck {
    Alike,
    OtherVersion,
    UnexpectedPeer,
}

/// Classifies a received greeting.
pub(super) fn check_greeting(said: &str) -> GreetingCheck {
    if said == greeting() {
        GreetingCheck::Alike
    } else if said.starts_with("farcall-bench ") {
        GreetingCheck::OtherVersion
    } else {
        GreetingCheck::UnexpectedPeer
    }
}

/// Reads a line of at most the maximum length of a greeting, and no byte that follows it.
pub(super) fn read_greeting(mut from: impl Read) -> std::io::Result<String> {
    let mut line = Vec::new();
    while line.len() < GREETING_LEN_BYTES_MAX && line.last() != Some(&b'\n') {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Returns text of another host without control characters, truncated to [`FOREIGN_LEN_MAX`] characters.
fn shown(text: &str) -> String {
    let is_text = |character: &char| !character.is_control();
    text.trim().chars().filter(is_text).take(FOREIGN_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_greetings_of_versions_and_other_programs() {
        assert_eq!(check_greeting(&greeting()), GreetingCheck::Alike);
        assert_eq!(check_greeting("farcall-bench 0 0.0.9\n"), GreetingCheck::OtherVersion);
        assert_eq!(check_greeting("HTTP/1.1 400 Bad Request\r\n"), GreetingCheck::UnexpectedPeer);
        assert!(greeting().len() <= GREETING_LEN_BYTES_MAX);
    }

    #[test]
    fn text_of_another_host_is_short_and_obeyed_by_no_terminal() {
        let long = format!("\u{1b}]0;title\u{7}{}", "x".repeat(10_000));
        let text = shown(&long);
        assert!(text.starts_with("]0;titlex") && text.len() == FOREIGN_LEN_MAX);
    }
}

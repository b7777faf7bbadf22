//! Ends on devices of this host.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::{Device, with_sources};

use super::{Pace, World};
use crate::executor::{Executor, Local, Remote};

/// Pace of devices that respond immediately.
const QUICK: Pace = Pace {
    deadline: Duration::from_secs(20),
    quiet: Duration::from_millis(4),
    // 1 ms, two attempts.
    quick_retry: (8, 1),
    unreliable_tries: 1,
};

/// Pace of real and emulated RNICs, which may lose packets.
const RNIC: Pace = Pace {
    deadline: Duration::from_secs(20),
    quiet: Duration::from_millis(40),
    // 67 ms, four attempts.
    quick_retry: (14, 3),
    unreliable_tries: 1,
};

/// A world on a device of this host: both ends in this process, or the target behind an agent.
pub struct Host {
    device: Arc<dyn Device>,
    pace: Pace,
    began: Instant,
    agent: Option<Remote>,
    /// Description of the separation of the two ends.
    ends: String,
}

impl Host {
    /// Creates the world on a device: the software RNIC is fast, others may be slow.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let pace = if device.provider() == "softnic" { QUICK } else { RNIC };
        Self { device, pace, began: Instant::now(), agent: None, ends: "both ends in one process".to_owned() }
    }

    /// Returns the world with the target behind an agent that `command` starts; `ends` describes how it is separated.
    ///
    /// # Errors
    /// Returns the reason if the agent does not start.
    pub fn with_agent(self, command: Command, ends: impl Into<String>) -> Result<Self, String> {
        let ends = ends.into();
        match Remote::start(command) {
            Ok(agent) => Ok(Self { agent: Some(agent), ends, ..self }),
            Err(error) => Err(format!("cannot start the agent ({ends}): {error}")),
        }
    }

    /// Returns the world with the target behind an agent that listens on another host.
    ///
    /// # Errors
    /// Returns the reason if the agent does not reply.
    pub fn connected_to(self, address: SocketAddr) -> Result<Self, String> {
        let agent = Some(Remote::connect(address).map_err(|error| error.to_string())?);
        Ok(Self { agent, ends: format!("the other end at {address}"), ..self.between_hosts() })
    }

    /// Returns the world with another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.pace.deadline = deadline;
        self
    }

    /// Returns the world for a network between the two ends: operations take longer, and packets may be lost.
    #[must_use]
    pub fn between_hosts(mut self) -> Self {
        self.pace = Pace { deadline: self.pace.deadline, unreliable_tries: 3, ..RNIC };
        self
    }

    fn executor(&self) -> Result<Box<dyn Executor>, String> {
        let context = self.device.open().map_err(|error| with_sources(&error))?;
        Ok(Box::new(Local::new(self.device.provider(), context)))
    }
}

impl World for Host {
    fn name(&self) -> String {
        format!("{} ({}), {}", self.device.provider(), self.device.name(), self.ends)
    }

    fn provider(&self) -> &'static str {
        self.device.provider()
    }

    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String> {
        let target = match &self.agent {
            Some(agent) => Box::new(agent.clone()),
            None => self.executor()?,
        };
        Ok([self.executor()?, target])
    }

    fn idle(&self) {
        // Long enough for other threads on a busy core, short enough for thousands of calls.
        std::thread::sleep(Duration::from_micros(50));
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn pace(&self) -> Pace {
        self.pace
    }
}

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

/// A world with both ends in this process, on one device.
pub struct Host {
    device: Arc<dyn Device>,
    pace: Pace,
    began: Instant,
}

impl Host {
    /// Creates the world on a device: the software RNIC is fast, others may be slow.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let pace = if device.provider() == "softnic" { QUICK } else { RNIC };
        Self { device, pace, began: Instant::now() }
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
        format!("{} ({}), both ends in one process", self.device.provider(), self.device.name())
    }

    fn provider(&self) -> &'static str {
        self.device.provider()
    }

    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String> {
        Ok([self.executor()?, self.executor()?])
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

/// A world with the initiator in this process and the target behind an agent.
pub struct Processes {
    host: Host,
    agent: Remote,
    how: String,
}

impl Processes {
    /// Starts the agent with `command`; `how` describes how it is separated.
    ///
    /// # Errors
    /// Returns the reason if the agent does not start.
    pub fn start(host: Host, command: Command, how: impl Into<String>) -> Result<Self, String> {
        let how = how.into();
        let agent =
            Remote::start(command).map_err(|error| format!("cannot start the agent ({how}): {error}"))?;
        Ok(Self { host, agent, how })
    }

    /// Connects to an agent that listens on another host.
    ///
    /// # Errors
    /// Returns the reason if the agent does not reply.
    pub fn connect(host: Host, address: SocketAddr) -> Result<Self, String> {
        let agent = Remote::connect(address).map_err(|error| error.to_string())?;
        Ok(Self { host: host.between_hosts(), agent, how: format!("the other end at {address}") })
    }
}

impl World for Processes {
    fn name(&self) -> String {
        format!("{} ({}), {}", self.host.device.provider(), self.host.device.name(), self.how)
    }

    fn provider(&self) -> &'static str {
        self.host.provider()
    }

    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String> {
        Ok([self.host.executor()?, Box::new(self.agent.clone())])
    }

    fn idle(&self) {
        self.host.idle();
    }

    fn now(&self) -> Duration {
        self.host.now()
    }

    fn pace(&self) -> Pace {
        self.host.pace()
    }
}

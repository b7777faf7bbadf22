//! Ends on devices of this host.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::Device;

use super::{Pace, World};
use crate::executor::{Executor, Local, Remote};

/// The pace of devices that answer at once.
const QUICK: Pace = Pace {
    deadline: Duration::from_secs(20),
    quiet: Duration::from_millis(4),
    // 1 ms, two attempts.
    quick_retry: (8, 1),
    unreliable_tries: 1,
};

/// The pace of real and emulated RNICs, which may lose packets.
const RNIC: Pace = Pace {
    deadline: Duration::from_secs(20),
    quiet: Duration::from_millis(40),
    // 67 ms, four attempts.
    quick_retry: (14, 3),
    unreliable_tries: 1,
};

/// Both ends in this process, on one device.
pub struct Host {
    device: Arc<dyn Device>,
    pace: Pace,
    began: Instant,
}

impl Host {
    /// On a device: the software RNIC is quick, others may be slow.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let pace = if device.provider() == "softnic" { QUICK } else { RNIC };
        Self { device, pace, began: Instant::now() }
    }

    /// With another bound of what may take how long.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.pace.deadline = deadline;
        self
    }

    /// With a network between the two ends: what they do takes longer, and packets may be lost.
    #[must_use]
    pub fn between_hosts(mut self) -> Self {
        self.pace = Pace { deadline: self.pace.deadline, unreliable_tries: 3, ..RNIC };
        self
    }

    fn executor(&self) -> Result<Box<dyn Executor>, String> {
        let context = self.device.open().map_err(|error| error.to_string())?;
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
        // Long enough for others on a busy core, short enough for thousands of them.
        std::thread::sleep(Duration::from_micros(50));
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn pace(&self) -> Pace {
        self.pace
    }
}

/// The initiator in this process, the target behind an agent.
pub struct Processes {
    host: Host,
    agent: Remote,
    how: String,
}

impl Processes {
    /// Starts the agent with `command`; `how` says in words how it is separated.
    ///
    /// # Errors
    /// If the agent does not come up; the text says why.
    pub fn start(host: Host, command: Command, how: impl Into<String>) -> Result<Self, String> {
        let how = how.into();
        let agent =
            Remote::start(command).map_err(|error| format!("cannot start the agent ({how}): {error}"))?;
        Ok(Self { host, agent, how })
    }

    /// Connects to an agent that listens on another host.
    ///
    /// # Errors
    /// If it does not answer; the text says why.
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

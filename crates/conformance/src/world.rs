//! Where the two ends of a case live, and how time passes there.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::Device;

use crate::side::{Local, Remote, Side};

/// How long things take in a world.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long anything may take before it is called lost.
    pub deadline: Duration,
    /// How long to look for what must not happen.
    pub quiet: Duration,
    /// ACK timeout code and retries of cases that wait for retries to end: 4.096 µs · 2^code.
    pub quick_retry: (u8, u8),
}

/// A place for cases.
pub trait World {
    /// What runs where, in words.
    fn name(&self) -> String;

    /// The provider's name.
    fn provider(&self) -> &'static str;

    /// Two ends, empty.
    ///
    /// # Errors
    /// If there are none; the text says why.
    fn sides(&self) -> Result<[Box<dyn Side>; 2], String>;

    /// Lets a little time pass.
    fn idle(&self);

    /// The time.
    fn now(&self) -> Duration;

    /// How long things take.
    fn pace(&self) -> Pace;
}

/// The pace of devices of one host.
const HOST_PACE: Pace = Pace {
    deadline: Duration::from_secs(20),
    quiet: Duration::from_millis(4),
    // 1 ms, two attempts.
    quick_retry: (8, 1),
};

/// Both ends in this process, on one device.
pub struct Host {
    device: Arc<dyn Device>,
    pace: Pace,
    began: Instant,
}

impl Host {
    /// On a device of the software RNIC, or one as quick.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, pace: HOST_PACE, began: Instant::now() }
    }

    /// With another pace.
    #[must_use]
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    fn side(&self) -> Result<Box<dyn Side>, String> {
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

    fn sides(&self) -> Result<[Box<dyn Side>; 2], String> {
        Ok([self.side()?, self.side()?])
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
}

impl World for Processes {
    fn name(&self) -> String {
        format!("{} ({}), {}", self.host.device.provider(), self.host.device.name(), self.how)
    }

    fn provider(&self) -> &'static str {
        self.host.provider()
    }

    fn sides(&self) -> Result<[Box<dyn Side>; 2], String> {
        Ok([self.host.side()?, Box::new(self.agent.clone())])
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

//! Ends on nodes of a simulated network.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farcall_sim::{Config, Host, World as Network};
use farcall_verbs::{Nanos, Provider, with_sources};

use super::{Pace, World};
use crate::executor::{Executor, Local};

/// Minimum and maximum duration of an idle step. A step lasts until the next event, so that long waits need few polls.
const TURN: (Duration, Duration) = (Duration::from_nanos(500), Duration::from_millis(1));

/// A world of two nodes in virtual time: results do not depend on the machine.
pub struct Simulated {
    network: Rc<RefCell<Network>>,
    nodes: [Host; 2],
    what: String,
    loses: bool,
}

impl Simulated {
    /// Creates a world without faults, determined by a seed.
    pub fn new(seed: u64) -> Self {
        Self::with_config(Config::new(seed), format!("without faults, seed {seed}"))
    }

    /// Creates a world with another configuration, described by `what`.
    pub fn with_config(config: Config, what: impl Into<String>) -> Self {
        let loses = config.faults.loss_ppm > 0;
        let mut network = Network::new(config);
        let nodes = [network.add_node(), network.add_node()];
        Self { network: Rc::new(RefCell::new(network)), nodes, what: what.into(), loses }
    }

    fn executor(&self, node: &Host) -> Result<Box<dyn Executor>, String> {
        let devices = node.devices().map_err(|error| with_sources(&error))?;
        let device = devices.first().ok_or("a node without a device")?;
        let context = device.open().map_err(|error| with_sources(&error))?;
        let network = self.network.clone();
        let sleep = move |fd, timeout_ms: u32| {
            let limit = Duration::from_millis(timeout_ms.into());
            let mut network = network.borrow_mut();
            let until = network.now() + limit;
            let is_readable = network.run_while_not(limit, |network| network.is_readable(fd));
            if !is_readable {
                network.run_until(until);
            }
            Ok(is_readable)
        };
        Ok(Box::new(Local::with_sleep(self.provider(), context, Box::new(sleep))))
    }
}

impl World for Simulated {
    fn name(&self) -> String {
        format!("sim, two nodes in virtual time, {}", self.what)
    }

    fn provider(&self) -> &'static str {
        "sim"
    }

    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String> {
        let [a, b] = &self.nodes;
        Ok([self.executor(a)?, self.executor(b)?])
    }

    fn idle(&self) {
        let mut network = self.network.borrow_mut();
        let (least, most) = (network.now() + TURN.0, network.now() + TURN.1);
        let next = network.next_event_at().unwrap_or(most);
        network.run_until(next.clamp(least, most));
    }

    fn now(&self) -> Duration {
        let Nanos(ns) = self.network.borrow().now();
        Duration::from_nanos(ns)
    }

    fn pace(&self) -> Pace {
        Pace {
            deadline: Duration::from_secs(20),
            quiet: Duration::from_micros(200),
            // 1 ms, two attempts.
            quick_retry: (8, 1),
            unreliable_tries: if self.loses { 3 } else { 1 },
        }
    }
}

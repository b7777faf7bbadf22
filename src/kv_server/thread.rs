//! A server thread that answers memcached clients only: it sleeps in the door.

use super::counters::ThreadCounters;
use super::{KvServerError, now_ms};
use farcall_drive::Stop;
use farcall_kv::door::Door;
use farcall_kv::store::Partition;
use std::time::{Duration, Instant};

/// An idle thread looks this often whether it is to stop: ten wake-ups a second cost nothing that can be measured.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// A stopping thread answers what it received, but not for longer than this.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A partition and the doors to it.
pub(super) struct Worker {
    door: Door,
    partition: Partition,
    counters: ThreadCounters,
    stop: Stop,
}

impl Worker {
    pub(super) fn new(door: Door, partition: Partition, stop: Stop) -> Self {
        let counters = ThreadCounters::new(partition.config().partition);
        Self { door, partition, counters, stop }
    }

    /// Serves until told to stop, then answers what was received.
    pub(super) fn run(mut self) -> Result<(), KvServerError> {
        while !self.stop.is_requested() {
            self.door.poll(&mut self.partition, now_ms, Some(STOP_CHECK))?;
            self.counters.publish_if_due(Instant::now(), || self.partition.stats());
        }
        self.door.stop_listening();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        loop {
            let turns = self.door.poll(&mut self.partition, now_ms, Some(Duration::ZERO))?;
            if (turns == 0 && self.door.is_drained()) || Instant::now() > deadline {
                return Ok(());
            }
        }
    }
}

//! A server thread that answers memcached clients only: it sleeps in the door.

use super::upkeep::Upkeep;
use super::{DRAIN_PATIENCE, KvServerError, now_ms};
use farcall_drive::Stop;
use farcall_kv::door::Door;
use farcall_kv::store::Partition;
use std::time::{Duration, Instant};

/// An idle thread looks this often whether it is to stop: ten wake-ups a second cost nothing that can be measured.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// A partition and the doors to it.
pub(super) struct Worker {
    door: Door,
    partition: Partition,
    upkeep: Upkeep,
    stop: Stop,
}

impl Worker {
    pub(super) fn new(door: Door, partition: Partition, stop: Stop) -> Self {
        let upkeep = Upkeep::new(&partition);
        Self { door, partition, upkeep, stop }
    }

    /// Serves until told to stop, then answers what was received.
    pub(super) fn run(mut self) -> Result<(), KvServerError> {
        while !self.stop.is_requested() {
            self.door.poll(&mut self.partition, now_ms, Some(STOP_CHECK))?;
            self.upkeep.run(&mut self.partition, now_ms());
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

//! A server thread that serves memcached clients only: it sleeps in its front end.

use std::time::{Duration, Instant};

use farcall_drive::Stop;

use super::maintenance::Maintenance;
use super::{DRAIN_TIMEOUT, KvServerError};
use crate::front_end::FrontEnd;
use crate::store::{Clock, Partition};

/// Interval at which an idle thread checks for a stop request. Ten wake-ups a second have no measurable cost.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// Serves until a stop is requested, then executes the commands received so far.
pub(super) fn serve(
    mut front_end: FrontEnd,
    mut partition: Partition,
    clock: Clock,
    stop: &Stop,
) -> Result<(), KvServerError> {
    let mut maintenance = Maintenance::new(&partition);
    let now_ms = || clock.now_ms();
    while !stop.is_requested() {
        front_end.poll(&mut partition, now_ms, Some(STOP_CHECK))?;
        maintenance.run(&mut partition, now_ms);
    }
    front_end.stop_listening();
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    loop {
        let turns = front_end.poll(&mut partition, now_ms, Some(Duration::ZERO))?;
        if (turns == 0 && front_end.is_drained()) || Instant::now() > deadline {
            return Ok(());
        }
    }
}

//! For tests of drivers: an endpoint that ends in its last poll before a sleep, and that no event would wake.

use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};

#[derive(Default)]
pub(crate) struct EndsOnceArmed {
    is_armed: bool,
    pub(crate) has_ended: bool,
}

impl Endpoint for EndsOnceArmed {
    fn progress(&mut self, _now: Nanos) -> Progress {
        self.has_ended = self.is_armed;
        Progress::IDLE
    }

    fn arm(&mut self) -> Result<()> {
        self.is_armed = true;
        Ok(())
    }

    fn wait_set(&self, _set: &mut WaitSet) {}
}

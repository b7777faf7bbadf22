//! For tests of drivers: an endpoint that ends in its last look before a sleep, and that no event would wake.

use farcall_verbs::{Endpoint, Nanos, Next, Result, WaitSet};

#[derive(Default)]
pub(crate) struct EndsOnceArmed {
    is_armed: bool,
    pub(crate) has_ended: bool,
}

impl Endpoint for EndsOnceArmed {
    fn progress(&mut self, _now: Nanos) -> Next {
        self.has_ended = self.is_armed;
        Next::IDLE
    }

    fn arm(&mut self) -> Result<()> {
        self.is_armed = true;
        Ok(())
    }

    fn wait_set(&self, _set: &mut WaitSet) {}
}

//! The thread of a server: the responder, and a look at the sockets now and then.

use super::{Bootstrap, RpcServerError};
use farcall_drive::{Driver, Stop};
use farcall_link::{Nic, Waiting};
use farcall_rpc::{Handler, Responder, ResponderConfig};
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next, WaitSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two looks at bootstrap connections under load. Looking takes system calls, so it is seldom.
const BOOTSTRAP_PERIOD: Duration = Duration::from_millis(10);
/// Polls without work before the thread sleeps: some hundred microseconds.
pub(crate) const IDLE_POLLS: u32 = 10_000;
/// A draining thread is ended by force after this.
pub(crate) const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A number that differs between any two starts of a server on this host: starting takes longer than a microsecond.
pub(crate) fn incarnation() -> u64 {
    let since_epoch =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    since_epoch << 8 ^ u64::from(std::process::id())
}

/// A handler with its clients.
pub(super) struct Worker<H> {
    responder: Responder<H, MonotonicClock>,
    bootstrap: Bootstrap,
    clock: MonotonicClock,
    next_look: Nanos,
    /// The next turn is the last before sleeping: it looks at the sockets.
    is_armed: bool,
}

impl<H: Handler> Worker<H> {
    pub(super) fn new(handler: H, bootstrap: Bootstrap) -> Result<Self, RpcServerError> {
        let clock = MonotonicClock::new();
        let nic = Nic::open(&SoftNic::new())?;
        let responder = Responder::new(nic, ResponderConfig::default(), incarnation(), handler, clock)?;
        Ok(Self { responder, bootstrap, clock, next_look: Nanos::default(), is_armed: false })
    }

    /// Serves until told to stop, then finishes what came.
    pub(super) fn run(mut self, stop: Stop) -> Result<(), RpcServerError> {
        let waiting = Waiting::Adaptive { max_poll_wc: 16, max_retry: IDLE_POLLS };
        Driver::new(self.clock, waiting, stop).run(&mut self)?;
        self.bootstrap.say_going_away();
        self.responder.drain();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        let never = Stop::new().map_err(RpcServerError::Thread)?;
        Driver::new(self.clock, Waiting::TimeShared, never)
            .run_until(&mut self, |worker| worker.responder.is_drained() || Instant::now() > deadline)?;
        Ok(())
    }
}

impl<H: Handler> Endpoint for Worker<H> {
    fn progress(&mut self, now: Nanos) -> Next {
        let next = self.responder.progress(now);
        if !self.is_armed && now < self.next_look {
            return next;
        }
        self.is_armed = false;
        self.next_look = now + BOOTSTRAP_PERIOD;
        if self.bootstrap.look(&mut self.responder, now) { Next::Again } else { next }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.is_armed = true;
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.responder.wait_set(set);
        self.bootstrap.wait_set(set);
    }
}

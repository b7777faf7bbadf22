//! Loop that drives an endpoint in the calling thread.

use farcall_link::Waiting;
use farcall_verbs::{Clock, Endpoint, Error, Next, Result, WaitSet};

use crate::{Pollers, Stop, Waiter, sleep_on};

/// Number of driver iterations between two clock reads while there is work. Deadlines need no finer resolution, and a
/// clock read costs as much as a small request.
const TURNS_PER_CLOCK: u32 = 16;

/// Drives endpoints until it is stopped.
pub struct Driver<C> {
    clock: C,
    waiter: Waiter,
    stop: Stop,
    set: WaitSet,
}

impl<C: Clock> Driver<C> {
    /// Creates a driver with the wait strategy `waiting`, which ends when `stop` is requested.
    pub fn new(clock: C, waiting: Waiting, stop: Stop) -> Self {
        Self::with_pollers(clock, waiting, None, stop)
    }

    /// Like [`Driver::new`]; `pollers` poll while the thread sleeps.
    pub fn with_pollers(clock: C, waiting: Waiting, pollers: Option<Pollers>, stop: Stop) -> Self {
        Self { clock, waiter: Waiter::new(waiting, pollers), stop, set: WaitSet::default() }
    }

    /// Drives the endpoint until the stop is requested.
    ///
    /// # Errors
    /// If the system call that sleeps on the endpoint's descriptors fails.
    pub fn run<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<()> {
        let stop = self.stop.clone();
        self.run_until(endpoint, |_| stop.is_requested())
    }

    /// Drives the endpoint until the stop is requested or `done`, called after every iteration, returns true.
    ///
    /// # Errors
    /// If the system call that sleeps on the endpoint's descriptors fails.
    pub fn run_until<E: Endpoint + ?Sized>(
        &mut self,
        endpoint: &mut E,
        mut done: impl FnMut(&mut E) -> bool,
    ) -> Result<()> {
        let mut now = self.clock.now();
        let mut turns = 0;
        while !self.stop.is_requested() {
            turns += 1;
            if turns >= TURNS_PER_CLOCK {
                turns = 0;
                now = self.clock.now();
            }
            let next = endpoint.progress(now);
            if done(endpoint) {
                break;
            }
            match next {
                Next::Again => self.waiter.worked(),
                Next::Idle { .. } if self.waiter.was_idle(endpoint.looks()) => {
                    self.sleep(endpoint)?;
                    (now, turns) = (self.clock.now(), 0);
                }
                Next::Idle { .. } => std::hint::spin_loop(),
            }
        }
        Ok(())
    }

    /// Sleeps if the endpoint can be armed and has no work.
    fn sleep<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<()> {
        let now = self.clock.now();
        let Next::Idle { until } = self.waiter.arm_then_look(endpoint, now) else {
            self.waiter.worked();
            return Ok(());
        };
        self.set.clear();
        self.set.insert(self.stop.fd());
        self.waiter.wait_set(endpoint, &mut self.set);
        let timeout = until.map(|until| until.since(now));
        sleep_on(self.set.fds(), timeout)
            .map_err(|e| Error::os("poll", "sleep until something happens", e))?;
        self.waiter.woke();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{Nanos, VirtualClock};
    use std::time::Duration;

    #[test]
    fn a_stop_wakes_a_sleeper() {
        struct Idle;
        impl Endpoint for Idle {
            fn progress(&mut self, _now: Nanos) -> Next {
                Next::IDLE
            }
            fn arm(&mut self) -> Result<()> {
                Ok(())
            }
            fn wait_set(&self, _set: &mut WaitSet) {}
        }
        let stop = Stop::new().unwrap();
        let sleeper = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                Driver::new(VirtualClock::default(), Waiting::EventBatch, stop).run(&mut Idle)
            })
        };
        std::thread::sleep(Duration::from_millis(20));
        stop.request();
        sleeper.join().unwrap().unwrap();
    }
}

//! Loop that drives an endpoint in the calling thread.

use std::time::Duration;

use farcall_link::WaitStrategy;
use farcall_verbs::{Clock, Endpoint, Error, Progress, Result, WaitSet};

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
    pub fn new(clock: C, waiting: WaitStrategy, stop: Stop) -> Self {
        Self::with_pollers(clock, waiting, None, stop)
    }

    /// Like [`Driver::new`]; `pollers` poll while the thread sleeps.
    pub fn with_pollers(clock: C, waiting: WaitStrategy, pollers: Option<Pollers>, stop: Stop) -> Self {
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
                Progress::Again => self.waiter.worked(),
                Progress::Idle { .. } if self.waiter.was_idle(endpoint.poll_weight()) => {
                    now = self.clock.now();
                    let next = self.waiter.arm_then_poll(endpoint, now);
                    // No event follows the work of the last poll.
                    if done(endpoint) {
                        self.waiter.is_awake();
                        break;
                    }
                    match next {
                        Progress::Again => self.waiter.worked(),
                        Progress::Idle { until } => {
                            self.sleep(endpoint, until.map(|until| until.since(now)))?
                        }
                    }
                    (now, turns) = (self.clock.now(), 0);
                }
                Progress::Idle { .. } => std::hint::spin_loop(),
            }
        }
        Ok(())
    }

    /// Sleeps on the descriptors of an armed endpoint.
    fn sleep<E: Endpoint + ?Sized>(&mut self, endpoint: &E, timeout: Option<Duration>) -> Result<()> {
        self.set.clear();
        self.set.insert(self.stop.fd());
        self.waiter.wait_set(endpoint, &mut self.set);
        sleep_on(self.set.fds(), timeout).map_err(|e| Error::os("poll", "sleep until an event", e))?;
        self.waiter.woke();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends_once_armed::EndsOnceArmed;
    use farcall_verbs::{Nanos, VirtualClock};

    #[test]
    fn checks_whether_it_is_done_before_it_sleeps() {
        let mut endpoint = EndsOnceArmed::default();
        Driver::new(VirtualClock::default(), WaitStrategy::EventBatch, Stop::new().unwrap())
            .run_until(&mut endpoint, |endpoint| endpoint.has_ended)
            .unwrap();
        assert!(endpoint.has_ended);
    }

    #[test]
    fn a_stop_wakes_a_sleeper() {
        struct Idle;
        impl Endpoint for Idle {
            fn progress(&mut self, _now: Nanos) -> Progress {
                Progress::IDLE
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
                Driver::new(VirtualClock::default(), WaitStrategy::EventBatch, stop).run(&mut Idle)
            })
        };
        std::thread::sleep(Duration::from_millis(20));
        stop.request();
        sleeper.join().unwrap().unwrap();
    }
}

//! The loop that runs an endpoint in the calling thread.

use std::os::fd::RawFd;
use std::time::Duration;

use farcall_link::Waiting;
use farcall_verbs::{Clock, Endpoint, Error, Next, Result, WaitSet};

use crate::{Pace, Pacer, Stop, sleep_on};

/// Turns between two looks at the clock while there is work: deadlines need no finer time, and a look costs as much as a
/// small request.
const TURNS_PER_CLOCK: u32 = 16;

/// Runs endpoints until stopped.
pub struct Driver<C> {
    clock: C,
    pacer: Pacer,
    stop: Stop,
    set: WaitSet,
}

impl<C: Clock> Driver<C> {
    /// Waits as `waiting` says; ends when `stop` is requested.
    pub fn new(clock: C, waiting: Waiting, stop: Stop) -> Self {
        Self { clock, pacer: Pacer::new(waiting), stop, set: WaitSet::default() }
    }

    /// Runs the endpoint until the stop is requested.
    ///
    /// # Errors
    /// If the system cannot sleep on the endpoint's descriptors.
    pub fn run<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<()> {
        let stop = self.stop.clone();
        self.run_until(endpoint, |_| stop.is_requested())
    }

    /// Runs the endpoint until the stop is requested or `done`, asked after every turn, says so.
    ///
    /// # Errors
    /// If the system cannot sleep on the endpoint's descriptors.
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
                Next::Again => self.pacer.worked(),
                Next::Idle { .. } => match self.pacer.idle() {
                    Pace::Poll => std::hint::spin_loop(),
                    Pace::Yield => std::thread::yield_now(),
                    Pace::Sleep => {
                        self.sleep(endpoint, sleep_on)?;
                        (now, turns) = (self.clock.now(), 0);
                    }
                },
            }
        }
        Ok(())
    }

    /// Arms, looks once more, and only if there is nothing, sleeps. `system` does the sleeping.
    fn sleep<E: Endpoint + ?Sized>(
        &mut self,
        endpoint: &mut E,
        system: impl FnOnce(&[RawFd], Option<Duration>) -> std::io::Result<()>,
    ) -> Result<()> {
        if endpoint.arm().is_err() {
            // It cannot wake us: poll on.
            return Ok(());
        }
        let now = self.clock.now();
        let Next::Idle { until } = endpoint.progress(now) else {
            self.pacer.worked();
            return Ok(());
        };
        self.set.clear();
        self.set.insert(self.stop.fd());
        endpoint.wait_set(&mut self.set);
        let timeout = until.map(|until| until.since(now));
        system(self.set.fds(), timeout).map_err(|e| Error::os("poll", "sleep until something happens", e))?;
        self.pacer.woke();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{Nanos, VirtualClock};
    use std::cell::Cell;

    /// An endpoint whose one event arrives just before its `arrives_at`-th call, and which is woken only for what comes
    /// after it armed.
    struct Once {
        calls: Cell<u32>,
        arrives_at: u32,
        armed: bool,
        pending: bool,
        woken: bool,
        served: bool,
    }

    impl Once {
        fn call(&mut self) {
            self.calls.set(self.calls.get() + 1);
            if self.calls.get() == self.arrives_at {
                self.pending = true;
                self.woken = self.armed;
            }
        }
    }

    impl Endpoint for Once {
        fn progress(&mut self, _now: Nanos) -> Next {
            self.call();
            if std::mem::take(&mut self.pending) {
                self.served = true;
                return Next::Again;
            }
            Next::IDLE
        }

        fn arm(&mut self) -> Result<()> {
            self.call();
            self.armed = true;
            Ok(())
        }

        fn wait_set(&self, _set: &mut WaitSet) {}
    }

    #[test]
    fn no_event_is_slept_through_whenever_it_comes() {
        for arrives_at in 1..6 {
            let mut endpoint = Once {
                calls: Cell::new(0),
                arrives_at,
                armed: false,
                pending: false,
                woken: false,
                served: false,
            };
            let mut driver = Driver::new(VirtualClock::default(), Waiting::Event, Stop::new().unwrap());
            for _ in 0..4 {
                if endpoint.progress(Nanos(0)) == Next::IDLE {
                    let slept = Cell::new(false);
                    driver
                        .sleep(&mut endpoint, |_, _| {
                            slept.set(true);
                            Ok(())
                        })
                        .unwrap();
                    assert!(
                        !(slept.get() && endpoint.pending && !endpoint.woken),
                        "slept through event {arrives_at}"
                    );
                }
            }
            assert!(endpoint.served || endpoint.calls.get() < arrives_at);
        }
    }

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
                Driver::new(VirtualClock::default(), Waiting::Event, stop).run(&mut Idle)
            })
        };
        std::thread::sleep(Duration::from_millis(20));
        stop.request();
        sleeper.join().unwrap().unwrap();
    }
}

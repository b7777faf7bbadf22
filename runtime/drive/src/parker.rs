//! A thread that polls and sometimes sleeps: waking it costs a system call only while it sleeps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use farcall_shm::SleepFlag;
use rustix::event::{EventfdFlags, eventfd};

/// Sleep and wake-up of a thread whose work arrives through memory of its own process. After storing work there, a
/// producer calls [`Parker::unpark_if_parked`], which is one load while the thread is awake.
#[derive(Debug)]
pub struct Parker {
    word: SleepFlag,
    event: OwnedFd,
}

impl Parker {
    /// Creates the parker of a thread that is awake.
    ///
    /// # Errors
    /// If a descriptor cannot be created.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { word: SleepFlag::new(), event })
    }

    /// From now on new work makes the descriptor readable. The thread must check for work once more before it sleeps
    /// on it.
    pub fn arm(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        self.word.arm();
    }

    /// Called when that check found work, and after the sleep.
    pub fn disarm(&self) {
        self.word.disarm();
    }

    /// Returns, to a producer that has stored work, whether the thread sleeps or is about to. If not, the last check
    /// of the thread finds the work.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.word.is_armed()
    }

    /// Called by a producer after it has stored work.
    #[inline]
    pub fn unpark_if_parked(&self) {
        if self.word.take_wake_duty() {
            // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Returns the descriptor on which the thread sleeps.
    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sleep_on;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn wakes_a_sleeping_receiver_and_writes_nothing_while_awake() {
        const ROUNDS: u32 = 2_000;
        let (parker, left) = (Arc::new(Parker::new().unwrap()), Arc::new(AtomicU32::new(0)));
        let timed_out = Arc::new(AtomicBool::new(false));
        let receiver = std::thread::spawn({
            let (parker, left, timed_out) = (Arc::clone(&parker), Arc::clone(&left), Arc::clone(&timed_out));
            move || {
                for taken in 0..ROUNDS {
                    while left.load(Ordering::Acquire) <= taken {
                        parker.arm();
                        if left.load(Ordering::Acquire) <= taken {
                            sleep_on(&[parker.fd()], Some(Duration::from_secs(60))).unwrap();
                            let is_late = left.load(Ordering::Acquire) <= taken;
                            timed_out.fetch_or(is_late, Ordering::Relaxed);
                        }
                        parker.disarm();
                    }
                }
            }
        });
        for round in 0..ROUNDS {
            left.store(round + 1, Ordering::Release);
            parker.unpark_if_parked();
            if round % 3 == 0 {
                std::thread::yield_now();
            }
        }
        receiver.join().unwrap();
        assert!(!timed_out.load(Ordering::Relaxed), "slept through what was left");
        // Awake: no event is written.
        parker.arm();
        parker.disarm();
        parker.unpark_if_parked();
        let mut counter = [0u8; 8];
        assert!(rustix::io::read(&parker.event, &mut counter).is_err(), "nobody sleeps");
    }
}

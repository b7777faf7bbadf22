//! Threads of Farcall's own, beside the service thread, that stand still while memory of the program moves: another
//! library of ours may have one in the same process.
//!
//! Such a thread works in turns. Between two of them it writes to its own stack only, so whoever keeps it from the
//! next one keeps it from all memory that a program registers.

use std::sync::MutexGuard;

use farcall_shm::Mutex;

/// More threads than this work in turns all the same, but count as the program's.
const MAX_KNOWN: usize = 4;

/// The threads' numbers. In static memory, which no program registers: who waits for the lock writes to it.
static AT_WORK: Mutex<Numbers> = Mutex::new(Numbers([0; MAX_KNOWN]));

/// Zero where there is none.
struct Numbers([u32; MAX_KNOWN]);

impl Numbers {
    fn add(&mut self, number: u32) {
        if !self.0.contains(&number)
            && let Some(free) = self.0.iter_mut().find(|known| **known == 0)
        {
            *free = number;
        }
    }
}

/// Runs a turn of the calling thread, while no memory of the program moves. From its first turn on the thread counts
/// as Farcall's own: [`SoftNic::moving_registered_memory`](crate::SoftNic::moving_registered_memory) holds it still
/// by letting its next turn wait.
///
/// The thread must live as long as the process and block all signals. Between turns it must not write to anything but
/// its own stack; in a turn it must not use the device, nor fork: who waits for its end may hold what it would need.
pub fn helper_turn(run: impl FnOnce()) {
    // A child must find the lock free, and the parent's threads forgotten.
    super::super::fork::install();
    let mut numbers = AT_WORK.lock();
    numbers.add(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    run();
}

/// As long as it lives, no helper has a turn.
pub(crate) struct Paused(MutexGuard<'static, Numbers>);

/// Waits until every helper has ended its turn, and keeps them from the next.
pub(crate) fn pause() -> Paused {
    Paused(AT_WORK.lock())
}

impl Paused {
    /// Whether a thread is a helper.
    pub(super) fn contains(&self, thread: u32) -> bool {
        thread != 0 && self.0.0.contains(&thread)
    }

    /// In a forked child: helpers are the parent's.
    pub(crate) fn detach(mut self) {
        self.0.0 = [0; MAX_KNOWN];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_once_and_only_so_many_are() {
        let mut numbers = Numbers([0; MAX_KNOWN]);
        for number in [7, 7, 8, 9, 10, 11] {
            numbers.add(number);
        }
        assert_eq!(numbers.0, [7, 8, 9, 10]);
    }
}

//! Farcall threads, other than the service thread, that must pause while memory of the program moves. Another Farcall
//! library in the same process may have such a thread.
//!
//! Such a thread works in iterations. Between two iterations it writes only to its own stack. Delaying the next
//! iteration therefore keeps it from all memory that a program registers.

use std::sync::MutexGuard;

use farcall_shm::Mutex;

/// Maximum number of registered threads. Further ones work in the same way, but count as threads of the program.
const MAX_KNOWN: usize = 4;

/// Thread ids. In static memory, which no program registers, because threads that wait for the lock write to it.
static HELPERS: Mutex<ThreadIds> = Mutex::new(ThreadIds([0; MAX_KNOWN]));

/// Thread ids; zero in free entries.
struct ThreadIds([u32; MAX_KNOWN]);

impl ThreadIds {
    fn add(&mut self, number: u32) {
        if !self.0.contains(&number)
            && let Some(free) = self.0.iter_mut().find(|known| **known == 0)
        {
            *free = number;
        }
    }
}

/// Runs an iteration of the calling thread while no memory of the program moves. From its first iteration on, the
/// thread counts as a Farcall thread: [`SoftNic::moving_registered_memory`](crate::SoftNic::moving_registered_memory)
/// pauses it by delaying its next iteration.
///
/// The thread must exist as long as the process, and block all signals. Between iterations it must write only to its
/// own stack. In an iteration it must not use the device or fork, because the thread that waits for its end may hold
/// locks that these need.
pub fn helper_turn(run: impl FnOnce()) {
    // A forked child must find the lock free and the parent's threads removed.
    super::super::fork::install();
    let mut threads = HELPERS.lock();
    threads.add(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    run();
}

/// Keeps all helper threads from starting an iteration until it is dropped.
pub(crate) struct Paused(MutexGuard<'static, ThreadIds>);

/// Waits until every helper thread has ended its iteration, and keeps them from starting another.
pub(crate) fn pause() -> Paused {
    Paused(HELPERS.lock())
}

impl Paused {
    /// Returns whether a thread is a registered helper.
    pub(super) fn contains(&self, thread: u32) -> bool {
        thread != 0 && self.0.0.contains(&thread)
    }

    /// In a forked child: removes the helpers, which belong to the parent.
    pub(crate) fn detach(mut self) {
        self.0.0 = [0; MAX_KNOWN];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_once_and_only_so_many_are() {
        let mut threads = ThreadIds([0; MAX_KNOWN]);
        for number in [7, 7, 8, 9, 10, 11] {
            threads.add(number);
        }
        assert_eq!(threads.0, [7, 8, 9, 10]);
    }
}

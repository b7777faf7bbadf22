//! Time slices of threads that sleep until a peer wakes them.

use std::cell::Cell;

/// Minimum slice that Linux grants, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// Requests the shortest time slice for the calling thread, once. For a thread that exchanges messages and sleeps in
/// between, while other threads compete for the processors.
///
/// By default a woken thread waits until the thread that runs has used up its slice of about three milliseconds, unless
/// both happen to be on the processor of the waker. A thread with a shorter slice runs at once (Linux 6.12 and later).
/// Its share of the processors and its priority stay the same. Threads and processes that it starts have the default
/// slice, because their work may be of another kind.
///
/// Does nothing for threads with a real-time or batch policy or a raised priority, for those that have as short a slice
/// already, and if the kernel refuses or does not support such slices.
pub fn request_short_slice() {
    thread_local! {
        static IS_REQUESTED: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_REQUESTED.replace(true) {
        request();
    }
}

#[cold]
fn request() {
    if let Some(mut attributes) = attributes()
        && attributes.sched_policy == libc::SCHED_OTHER as u32
        && attributes.sched_nice >= 0
        && attributes.sched_runtime > SHORTEST_NS
    {
        attributes.sched_runtime = SHORTEST_NS;
        attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
        // SAFETY: sched_setattr(2) reads `size` bytes of the local structure; 0 is the calling thread.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Returns the scheduling attributes of the calling thread. `sched_runtime` is its slice; 0 before Linux 6.12.
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes);
    // SAFETY: sched_getattr(2) writes at most `size` bytes to the local structure; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_the_slice_of_this_thread_alone() {
        std::thread::spawn(|| {
            let Some(before) = attributes() else { return };
            request_short_slice();
            let after = attributes().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            if before.sched_policy == libc::SCHED_OTHER as u32 && before.sched_nice >= 0 {
                assert_eq!(after.sched_runtime, before.sched_runtime.min(SHORTEST_NS));
            }
            let of_child = std::thread::spawn(attributes).join().unwrap().unwrap();
            assert_eq!(of_child.sched_runtime, before.sched_runtime);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn leaves_batch_threads_alone() {
        std::thread::spawn(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameters are a local variable that outlives the call; 0 is the calling thread.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) }, 0);
            let slice_ns = || attributes().map(|attributes| attributes.sched_runtime);
            let before = slice_ns();
            request_short_slice();
            assert_eq!(slice_ns(), before);
        })
        .join()
        .unwrap();
    }
}

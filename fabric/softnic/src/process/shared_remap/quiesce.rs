//! Pausing of all threads that could write to the program's memory while it moves.

use std::fs;
use std::sync::MutexGuard;

use super::helper_threads::{self, Paused};
use crate::process::service_thread::Service;

/// While it exists, no thread of this process runs except the calling one. Farcall's threads are paused, and signals
/// are blocked.
pub(super) struct QuiescedProcess<'a> {
    _service: MutexGuard<'a, ()>,
    _helpers: Paused,
    signals: libc::sigset_t,
}

impl<'a> QuiescedProcess<'a> {
    /// Pauses the process. Returns `None` if the program has other threads, or if that cannot be determined. New
    /// threads can only be started by the calling thread.
    pub(super) fn hold(service: &'a Service) -> Option<Self> {
        // Paused first, because the service thread may start a thread in its iteration.
        let paused = service.pause();
        let helpers = helper_threads::pause();
        // SAFETY: the signal sets are local variables; all bytes zero are a valid `sigset_t`. The call changes the mask
        // of this thread only.
        let signals = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            before
        };
        let is_alone = is_alone(|thread| thread == service.thread_id() || helpers.contains(thread));
        // Created even if the process is not alone, so that its destructor restores the signal mask.
        let sole = Self { _service: paused, _helpers: helpers, signals };
        is_alone.then_some(sole)
    }

    /// Returns whether other processes of the same user may read this process's memory. If not, they must not map it
    /// either.
    pub(super) fn is_dumpable(&self) -> bool {
        // SAFETY: `PR_GET_DUMPABLE` only reads an attribute of the process.
        unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
    }
}

impl Drop for QuiescedProcess<'_> {
    fn drop(&mut self) {
        // SAFETY: `signals` is the mask that `hold` saved for this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut()) };
    }
}

/// Returns whether the process has no threads except this one and Farcall's own.
fn is_alone(is_ours: impl Fn(u32) -> bool) -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut found_this = false;
    for task in tasks {
        let number = task.ok().and_then(|task| task.file_name().to_str()?.parse::<u32>().ok());
        match number {
            Some(number) if number == this => found_this = true,
            Some(number) if is_ours(number) => {}
            _ => return false,
        }
    }
    found_this
}

/// Returns whether the program has locked memory, or memory is pinned (registered buffers of io_uring, devices in user
/// space). Locks and pins refer to physical pages and not to addresses, so these pages must not be replaced.
pub(super) fn kernel_holds_pages() -> bool {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return true };
    holds_pages(&status)
}

fn holds_pages(status: &str) -> bool {
    let is_none = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|line| line.trim() == "0 kB")
    };
    !(is_none("VmLck:") && is_none("VmPin:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_or_pinned_memory_is_found() {
        assert!(!holds_pages("Name:\tx\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n"));
        assert!(holds_pages("VmLck:\t       8 kB\nVmPin:\t       0 kB\n"));
        assert!(holds_pages("VmLck:\t       0 kB\nVmPin:\t    4096 kB\n"));
        assert!(holds_pages("VmLck:\t       0 kB\n"), "who cannot tell may not move");
    }

    #[test]
    fn a_process_with_threads_is_not_alone() {
        std::thread::spawn(|| assert!(!is_alone(|_| false))).join().unwrap();
    }
}

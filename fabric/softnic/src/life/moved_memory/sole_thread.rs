//! Holding everything still that could write to the program's memory while it moves.

use std::fs;
use std::sync::MutexGuard;

use super::helper_threads::{self, Paused};
use crate::life::Process;

/// As long as it lives, nothing of this process runs but the calling thread: our own threads wait, and so do signals.
pub(super) struct SoleThread<'a> {
    _service: MutexGuard<'a, ()>,
    _helpers: Paused,
    signals: libc::sigset_t,
}

impl<'a> SoleThread<'a> {
    /// `None` if the program has other threads, or we cannot tell. What it starts later it starts from this thread.
    pub(super) fn hold(process: &'a Process) -> Option<Self> {
        // First: while it is in its turn it may start something.
        let service = process.service.pause();
        let helpers = helper_threads::pause();
        // SAFETY: fills signal sets of ours and changes the mask of this thread.
        let signals = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            before
        };
        let is_alone = is_alone(|thread| thread == process.service.thread_id() || helpers.contains(thread));
        // Also if it is not: the signals get their way back.
        let sole = Self { _service: service, _helpers: helpers, signals };
        is_alone.then_some(sole)
    }

    /// Whether others of our user may look at this process's memory; if not, it gives them nothing to map either.
    pub(super) fn is_dumpable(&self) -> bool {
        // SAFETY: reads an attribute of the process.
        unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
    }
}

impl Drop for SoleThread<'_> {
    fn drop(&mut self) {
        // SAFETY: gives this thread its own mask back.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut()) };
    }
}

/// Whether the process has no threads but this one and our own.
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

/// Whether the program has locked memory, or something has pinned it (registered buffers of io_uring, devices in user
/// space): that is about pages, not about addresses, so they must stay.
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

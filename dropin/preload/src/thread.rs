//! Identity of this thread and of this process, for locks and forks.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Number of forks between the program's first process and this one, plus 1.
static FORKS: AtomicU32 = AtomicU32::new(1);
static PROCESS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// The number, and the generation in which it was queried.
    static ID: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Returns the generation of this process: 1, and one more in each forked child.
pub fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns the kernel's number of this thread.
pub fn id() -> u64 {
    let (known, asked) = ID.get();
    if known != 0 && asked == generation() {
        return known;
    }
    if crate::confined::is_confined() {
        // An address of this thread's own, which no number of a thread is.
        return ID.with(|own| std::ptr::from_ref(own).addr() as u64) | 1 << 63;
    }
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    ID.set((id, generation()));
    id
}

/// Returns whether a thread still exists.
pub fn is_alive(id: u64) -> bool {
    if crate::confined::is_confined() {
        return true;
    }
    // SAFETY: signal 0 only checks; no memory is involved.
    let sent = unsafe { crate::libc_next::syscall(libc::SYS_tkill, id as usize, 0, 0, 0, 0, 0) };
    sent == 0 || crate::errno::get() != libc::ESRCH
}

/// Hints to the processor that this thread waits for another one.
pub fn spin() {
    std::hint::spin_loop();
}

/// Lets other threads run for some microseconds.
pub fn pause() {
    if crate::confined::is_confined() {
        return std::hint::spin_loop();
    }
    std::thread::sleep(std::time::Duration::from_micros(20));
}

/// Records which process this is.
pub fn record_process() {
    PROCESS.store(own_pid(), Ordering::Relaxed);
}

/// Called in a forked child: inherited locks and numbers belong to another process as well.
pub fn enter_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    record_process();
}

/// Returns whether this is a child between vfork and exec: it has its parent's memory, and descriptors of its own.
pub fn is_vfork_child() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != own_pid()
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

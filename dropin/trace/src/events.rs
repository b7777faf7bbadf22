//! Waiting for events, and for their acknowledgement. Waits are traced.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::call::waits;

/// Waits until a descriptor is readable.
///
/// # Errors
/// Returns `EAGAIN` if it is not readable and the program made it non-blocking, `EINTR`, or the kernel's error.
///
/// # Safety
/// `fd` must be open.
pub unsafe fn wait_readable(fd: c_int) -> Result<(), c_int> {
    // SAFETY: contract of this function: `fd` is open, and remains so during the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let readable = |timeout: Option<&Timespec>| {
        let ready = poll(&mut [PollFd::new(&borrowed, PollFlags::IN)], timeout);
        ready.map(|ready| ready > 0).map_err(|error| error.raw_os_error())
    };
    if readable(Some(&Timespec::default()))? {
        return Ok(());
    }
    if fcntl_getfl(borrowed).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
        return Err(libc::EAGAIN);
    }
    waits("event", |line| line.key("fd").number(fd));
    readable(None).map(drop)
}

/// Count of the events that were returned to the program and are not acknowledged yet. An object is not destroyed
/// before they are (man `ibv_get_cq_event`, `ibv_get_async_event`, `rdma_destroy_id`).
#[derive(Debug, Default)]
pub struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    /// Counts an event that is returned to the program.
    pub fn handed_out(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Records that the program acknowledges events.
    pub fn acknowledge(&self, events: u32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Waits until every event is acknowledged.
    pub fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if *count > 0 {
            waits("acknowledgement", |line| line.key("events").number(*count));
        }
        let _zero =
            self.changed.wait_while(count, |count| *count > 0).unwrap_or_else(PoisonError::into_inner);
    }
}

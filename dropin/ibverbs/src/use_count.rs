//! How many objects were made of another: it cannot be destroyed before they are.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::errno;

#[derive(Default)]
pub struct UseCount(AtomicU32);

impl UseCount {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// `EBUSY` if there are any, as the kernel says.
    pub fn check_none(&self) -> Result<(), c_int> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            users => {
                Err(errno::refused(libc::EBUSY, format_args!("{users} objects were made of it, and live")))
            }
        }
    }
}

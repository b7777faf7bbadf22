//! Number of objects that depend on another one, which cannot be destroyed before them.

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

    /// Returns `EBUSY` if there are any, like the kernel.
    pub fn check_none(&self) -> Result<(), c_int> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            users => Err(errno::refused(
                libc::EBUSY,
                format_args!("{users} objects that were created from it still exist"),
            )),
        }
    }
}

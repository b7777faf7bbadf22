//! How many objects were made of another: it cannot be destroyed before they are.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub struct Uses(AtomicU32);

impl Uses {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// `EBUSY` if there are any, as the kernel says.
    pub fn check_none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(libc::EBUSY) }
    }
}

//! Which objects live, and by which handle. The kernel knows objects by the handles in them: a call with an object that
//! was destroyed, or whose handle the program has changed, fails and touches nothing.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use farcall_layout::{Ah, CompChannel, Cq, Mr, Pd, Qp, Srq};

use crate::errno;

/// A C structure that has a handle.
pub trait Handled {
    /// The handle, as the program may have changed it.
    fn handle(&self) -> u32;
}

macro_rules! handled {
    ($($structure:ty),*) => {
        $(impl Handled for $structure {
            fn handle(&self) -> u32 {
                self.handle
            }
        })*
    };
}

handled!(Pd, Mr, Cq, Srq, Qp, Ah);

impl Handled for CompChannel {
    fn handle(&self) -> u32 {
        self.fd.cast_unsigned()
    }
}

/// A handle for an object whose provider numbers none.
pub fn new_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The live objects of one kind in this process: their handles by their addresses.
pub struct Live(Mutex<BTreeMap<usize, u32>>);

impl Live {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// An object was made; its handle is what the structure holds now.
    ///
    /// # Safety
    /// `object` must point to a structure that was just made.
    pub unsafe fn insert<T: Handled>(&self, object: *const T) {
        // SAFETY: the caller's promise.
        let handle = unsafe { (*object).handle() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(object.addr(), handle);
    }

    /// Checks that an object lives and has its handle.
    ///
    /// # Errors
    /// `EINVAL` for null, `ENOENT` otherwise, as the kernel says of handles that it does not know.
    pub fn check<T: Handled>(&self, object: *const T) -> Result<(), c_int> {
        let live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        is_known(&live, object)
    }

    /// As [`Live::check`]; the object lives no longer if that succeeds. Of several threads one succeeds.
    ///
    /// # Errors
    /// As [`Live::check`].
    pub fn remove<T: Handled>(&self, object: *const T) -> Result<(), c_int> {
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        is_known(&live, object)?;
        live.remove(&object.addr());
        Ok(())
    }
}

fn is_known<T: Handled>(live: &BTreeMap<usize, u32>, object: *const T) -> Result<(), c_int> {
    if object.is_null() {
        return Err(errno::refused(libc::EINVAL, format_args!("the object is null")));
    }
    let Some(handle) = live.get(&object.addr()) else {
        return Err(errno::refused(libc::ENOENT, format_args!("{object:p} is no live object")));
    };
    // SAFETY: objects that are listed live: they are removed under the lock before they are freed.
    let shown = unsafe { (*object).handle() };
    if shown == *handle {
        return Ok(());
    }
    Err(errno::refused(libc::ENOENT, format_args!("handle {shown:#x} of {object:p}; it is {handle:#x}")))
}

/// The live objects of each kind.
pub static DOMAINS: Live = Live::new();
pub static REGIONS: Live = Live::new();
pub static CHANNELS: Live = Live::new();
pub static COMPLETION_QUEUES: Live = Live::new();
pub static RECEIVE_QUEUES: Live = Live::new();
pub static PAIRS: Live = Live::new();
pub static ADDRESS_HANDLES: Live = Live::new();

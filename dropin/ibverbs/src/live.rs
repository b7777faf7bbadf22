//! The live objects and their handles. The kernel identifies objects by their context and handle: a call with an object
//! that was destroyed, or whose context or handle the program has changed, fails without accessing the object.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use farcall_layout::{Ah, CompChannel, Context, Cq, Mr, Pd, Qp, Srq};

use crate::errno;

/// Address of the context of an object, and its handle.
type Identity = (usize, u32);

/// A C structure that has a context and a handle, both of which the program may have changed.
pub trait Handled {
    fn context(&self) -> *mut Context;
    fn handle(&self) -> u32;

    fn identity(&self) -> Identity {
        (self.context().addr(), self.handle())
    }
}

macro_rules! handled {
    ($($structure:ty),*) => {
        $(impl Handled for $structure {
            fn context(&self) -> *mut Context {
                self.context
            }

            fn handle(&self) -> u32 {
                self.handle
            }
        })*
    };
}

handled!(Pd, Mr, Cq, Srq, Qp, Ah);

impl Handled for CompChannel {
    fn context(&self) -> *mut Context {
        self.context
    }

    fn handle(&self) -> u32 {
        self.fd.cast_unsigned()
    }
}

/// Returns a handle for an object that has no number at the provider.
pub fn new_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The live objects of one kind in this process. Key: address.
pub struct Live(Mutex<BTreeMap<usize, Identity>>);

impl Live {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Adds a new object with the context and the handle that its structure contains.
    ///
    /// # Safety
    /// `object` must point to a structure that was just created.
    pub unsafe fn insert<T: Handled>(&self, object: *const T) {
        // SAFETY: contract of this function: `object` is valid.
        let identity = unsafe { (*object).identity() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(object.addr(), identity);
    }

    /// Checks that an object is live, and has its context and handle.
    ///
    /// # Errors
    /// Returns `EINVAL` for null, and `ENOENT` otherwise, as the kernel does for unknown handles.
    pub fn check<T: Handled>(&self, object: *const T) -> Result<(), c_int> {
        let live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        is_known(&live, object)
    }

    /// Checks an object like [`Live::check`] and removes it. Of several concurrent calls only one succeeds.
    ///
    /// # Errors
    /// Returns the errors of [`Live::check`].
    pub fn remove<T: Handled>(&self, object: *const T) -> Result<(), c_int> {
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        is_known(&live, object)?;
        live.remove(&object.addr());
        Ok(())
    }
}

fn is_known<T: Handled>(live: &BTreeMap<usize, Identity>, object: *const T) -> Result<(), c_int> {
    if object.is_null() {
        return Err(errno::refused(libc::EINVAL, format_args!("the object is null")));
    }
    let Some(identity) = live.get(&object.addr()) else {
        return Err(errno::refused(libc::ENOENT, format_args!("{object:p} is no existing object")));
    };
    // SAFETY: listed objects are live: before an object is freed, it is removed under the lock that is held here.
    let shown = unsafe { (*object).identity() };
    if shown == *identity {
        return Ok(());
    }
    let ((context, handle), (shown_context, shown_handle)) = (*identity, shown);
    let why = format_args!(
        "context {shown_context:#x} and handle {shown_handle:#x} of {object:p}; they are {context:#x} and {handle:#x}"
    );
    Err(errno::refused(libc::ENOENT, why))
}

impl Handled for Context {
    fn context(&self) -> *mut Context {
        std::ptr::from_ref(self).cast_mut()
    }

    fn handle(&self) -> u32 {
        self.cmd_fd.cast_unsigned()
    }
}

/// The live objects of each kind.
pub static CONTEXTS: Live = Live::new();
pub static DOMAINS: Live = Live::new();
pub static REGIONS: Live = Live::new();
pub static CHANNELS: Live = Live::new();
pub static COMPLETION_QUEUES: Live = Live::new();
pub static RECEIVE_QUEUES: Live = Live::new();
pub static PAIRS: Live = Live::new();
pub static ADDRESS_HANDLES: Live = Live::new();

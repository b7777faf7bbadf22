//! Lookup of the C object that an event belongs to.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use farcall_trace::Unacknowledged;

use farcall_layout::{Cq, Qp, Srq};

/// Address of an object. Only compared, and returned to the program.
struct Address<T>(*mut T);

// SAFETY: only an address; code that dereferences it takes the object's locks.
unsafe impl<T> Send for Address<T> {}

/// The objects of one kind. Key: the provider's number.
pub struct Objects<T>(Mutex<HashMap<u32, Address<T>>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Objects<T> {
    pub fn insert(&self, number: u32, object: *mut T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Address(object));
    }

    /// Removes an object. Must be called before the object is freed.
    pub fn remove(&self, number: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Returns the object of an event, and counts the event as unacknowledged. `events` returns the counter of the
    /// object, which is live during the call.
    pub fn hand_out<'a>(
        &self,
        number: u32,
        events: impl FnOnce(*mut T) -> &'a Unacknowledged,
    ) -> Option<*mut T> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(&number)?.0;
        // Registered objects are live: before an object is freed, it is removed under the lock that is held here.
        events(found).handed_out();
        Some(found)
    }
}

/// The objects of a context.
#[derive(Default)]
pub struct Registry {
    pub cqs: Objects<Cq>,
    pub qps: Objects<Qp>,
    pub srqs: Objects<Srq>,
}

//! Which C object an event is about.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use farcall_trace::Unacknowledged;

use crate::cq::CqObject;
use crate::qp::QpObject;
use crate::srq::SrqObject;

/// An address of an object. Only compared and handed back to the program.
struct Address<T>(*mut T);

// SAFETY: an address; code that follows it takes the object's locks.
unsafe impl<T> Send for Address<T> {}

/// The objects of one kind, by the numbers that the provider calls them.
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

    /// To be called before the object dies.
    pub fn remove(&self, number: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// The object an event is about, which then waits for the acknowledgement.
    pub fn hand_out(&self, number: u32, events: impl Fn(&T) -> &Unacknowledged) -> Option<*mut T> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(&number)?.0;
        // SAFETY: registered objects live: they are removed under this lock before they die.
        events(unsafe { &*found }).handed_out();
        Some(found)
    }
}

/// The objects of a context.
#[derive(Default)]
pub struct Registry {
    pub cqs: Objects<CqObject>,
    pub qps: Objects<QpObject>,
    pub srqs: Objects<SrqObject>,
}

//! Which C object an event is about.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::cq::CqObject;
use crate::qp::QpObject;
use crate::srq::SrqObject;

/// An address of an object. Only compared and handed back to the program.
pub struct Address<T>(pub *mut T);

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Address<T> {}

// SAFETY: an address; whoever follows it holds the object's locks.
unsafe impl<T> Send for Address<T> {}

/// The objects of a context, by the numbers that the provider calls them.
#[derive(Default)]
pub struct Registry {
    pub cqs: Mutex<HashMap<u32, Address<CqObject>>>,
    pub qps: Mutex<HashMap<u32, Address<QpObject>>>,
    pub srqs: Mutex<HashMap<u32, Address<SrqObject>>>,
}

/// Events handed to the program and not acknowledged yet: an object is not destroyed before they are (man
/// `ibv_get_cq_event`, `ibv_get_async_event`).
#[derive(Default)]
pub struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    pub fn handed_out(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub fn acknowledge(&self, events: u32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Waits until every event is acknowledged.
    pub fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if *count > 0 && farcall_trace::is_on() {
            farcall_trace::waits("acknowledgement", |line| {
                line.key("events");
                line.number(*count);
            });
        }
        let _zero =
            self.changed.wait_while(count, |count| *count > 0).unwrap_or_else(PoisonError::into_inner);
    }
}

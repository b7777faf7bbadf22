//! A mutex that is not poisoned: what it guards is whole again, or never was broken, when a thread panics inside.

use std::sync::{MutexGuard, PoisonError, TryLockError};

/// The standard library's mutex; that a thread panicked while it held it is no concern of the next.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// One that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until nobody holds it, and holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds it, unless another thread does.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until whoever holds it now has left.
    pub fn wait(&self) {
        drop(self.lock());
    }
}

//! Objects that programs in other languages own.

use std::sync::{Mutex, TryLockError};

use super::{Code, Failure};

/// An object that one thread at a time uses. Concurrent uses fail immediately instead of waiting. A panic makes the
/// object unusable.
pub struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    /// Wraps an object.
    pub const fn new(inner: T) -> Self {
        Self(Mutex::new(inner))
    }

    /// Calls `f` with the object.
    ///
    /// # Errors
    /// [`Code::Busy`] if another thread is using the object, [`Code::Panicked`] after a panic, or the error of `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        match self.0.try_lock() {
            Ok(mut inner) => f(&mut inner),
            Err(TryLockError::WouldBlock) => Err(Code::Busy.into()),
            Err(TryLockError::Poisoned(_)) => Err(Code::Panicked.into()),
        }
    }

    /// Returns the object.
    ///
    /// # Errors
    /// [`Code::Panicked`] after a panic.
    pub fn into_inner(self) -> Result<T, Failure> {
        self.0.into_inner().map_err(|_| Code::Panicked.into())
    }
}

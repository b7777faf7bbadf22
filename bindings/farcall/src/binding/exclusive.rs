//! Objects that programs in other languages hold.

use std::sync::{Mutex, TryLockError};

use super::{Code, Failure};

/// An object that one thread at a time uses; nobody waits for it. A panic leaves it unusable.
pub struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    /// Of an object.
    pub const fn new(inner: T) -> Self {
        Self(Mutex::new(inner))
    }

    /// Does something with the object.
    ///
    /// # Errors
    /// [`Code::Busy`] if somebody else does just now, [`Code::Panicked`] after a panic, or what `f` returns.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        match self.0.try_lock() {
            Ok(mut inner) => f(&mut inner),
            Err(TryLockError::WouldBlock) => Err(Code::Busy.into()),
            Err(TryLockError::Poisoned(_)) => Err(Code::Panicked.into()),
        }
    }

    /// The object.
    ///
    /// # Errors
    /// [`Code::Panicked`] after a panic.
    pub fn into_inner(self) -> Result<T, Failure> {
        self.0.into_inner().map_err(|_| Code::Panicked.into())
    }
}

//! Objects of the library that Python holds.

use farcall::binding::{Code, Exclusive, Failure};
use pyo3::prelude::*;

use crate::error::raised;

/// An object that one thread at a time uses, until it is closed.
pub(crate) struct Held<T: Send>(Exclusive<Option<T>>);

impl<T: Send> Held<T> {
    pub const fn new(inner: T) -> Self {
        Self(Exclusive::new(Some(inner)))
    }

    /// Does something that may wait; other threads run meanwhile.
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut T) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        py.detach(|| self.with(f)).map_err(|failure| raised(py, failure))
    }

    /// Does something at once, while the interpreter is held.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        self.0.with(|inner| match inner {
            Some(inner) => f(inner),
            None => Err(Failure::new(Code::Invalid, "it is closed")),
        })
    }

    /// Ends the object, if it is still there; `end` may wait.
    pub fn close(&self, py: Python<'_>, end: impl FnOnce(T) -> Result<(), Failure> + Send) -> PyResult<()> {
        let ended = py.detach(|| self.0.with(|inner| inner.take().map_or(Ok(()), end)));
        ended.map_err(|failure| raised(py, failure))
    }
}

/// What ends may wait for threads that want the interpreter.
impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let Ok(Some(inner)) = self.0.with(|inner| Ok(inner.take())) else { return };
        let mut inner = Some(inner);
        Python::try_attach(|py| {
            let inner = inner.take();
            py.detach(move || drop(inner));
        });
    }
}

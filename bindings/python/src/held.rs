//! Objects of the library that belong to Python objects.

use farcall::binding::{Code, Exclusive, Failure};
use pyo3::prelude::*;

use crate::error::raised;

/// An object of the library. One thread at a time uses it until it is closed.
pub(crate) struct Held<T: Send>(Exclusive<Option<T>>);

impl<T: Send> Held<T> {
    pub const fn new(inner: T) -> Self {
        Self(Exclusive::new(Some(inner)))
    }

    /// Calls `f`, which may wait, without the GIL: other Python threads run in the meantime.
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut T) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        py.detach(|| self.with(f)).map_err(|failure| raised(py, failure))
    }

    /// Calls `f` without releasing the GIL if this thread holds it. `f` must not wait in that case.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        self.0.with(|inner| match inner {
            Some(inner) => f(inner),
            None => Err(Failure::new(Code::Invalid, "it is closed")),
        })
    }

    /// Closes the object by `end`, which may wait, unless it is already closed.
    pub fn close(&self, py: Python<'_>, end: impl FnOnce(T) -> Result<(), Failure> + Send) -> PyResult<()> {
        let ended = py.detach(|| self.0.with(|inner| inner.take().map_or(Ok(()), end)));
        ended.map_err(|failure| raised(py, failure))
    }
}

/// Drops the object without the GIL: dropping it may wait for threads that need the GIL, such as those of a server.
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

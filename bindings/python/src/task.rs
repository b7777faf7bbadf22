//! Conversion of futures of the library to futures of asyncio.

use std::future::Future;
use std::sync::Mutex;

use farcall::binding::{Code, Failure};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::error::raised;

/// The tokio runtime, and the id of the process that created it. A forked child creates its own, because the threads
/// of a runtime do not survive a fork.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

fn runtime() -> Result<Handle, Failure> {
    let panicked = |_| Failure::from(Code::Panicked);
    let mut runtime = RUNTIME.lock().map_err(panicked)?;
    let process = std::process::id();
    if runtime.as_ref().is_none_or(|(made_by, _)| *made_by != process) {
        let system = |error: std::io::Error| Failure::new(Code::System, error.to_string());
        let made = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(system)?;
        // Leak the runtime of the parent process: dropping it would wait for threads that do not exist here.
        std::mem::forget(runtime.replace((process, made)));
    }
    runtime.as_ref().map(|(_, runtime)| runtime.handle().clone()).ok_or_else(|| Code::System.into())
}

/// Done callback of an asyncio future: aborts the task, which is still running only if the future was cancelled.
#[pyclass(frozen)]
struct Abort(AbortHandle);

#[pymethods]
impl Abort {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        self.0.abort();
    }
}

/// Sets the result or the exception of an asyncio future, in the thread of its event loop.
#[pyclass(frozen)]
struct Settle;

#[pymethods]
impl Settle {
    fn __call__(
        &self,
        future: &Bound<'_, PyAny>,
        result: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match error.is_none() {
            true => future.call_method1("set_result", (result,))?,
            false => future.call_method1("set_exception", (error,))?,
        };
        Ok(())
    }
}

/// Runs `future` on the runtime. Returns a future of the running asyncio event loop, which receives the outcome;
/// `give` converts a result to a Python object.
pub(crate) fn spawn<'py, T: Send + 'static>(
    py: Python<'py>,
    future: impl Future<Output = Result<T, Failure>> + Send + 'static,
    give: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
    let awaited = event_loop.call_method0("create_future")?;
    let runtime = runtime().map_err(|failure| raised(py, failure))?;
    let (event_loop, told) = (event_loop.unbind(), awaited.clone().unbind());
    let task = runtime.spawn(async move {
        let outcome = future.await;
        // If the interpreter is shutting down or the event loop is closed, no task awaits the outcome: discard it.
        Python::try_attach(|py| {
            let outcome = match outcome {
                Ok(result) => give(py, result),
                Err(failure) => Err(raised(py, failure)),
            };
            let (result, error) = match outcome {
                Ok(result) => (Some(result), None),
                Err(error) => (None, Some(error)),
            };
            let error = error.map(|error| error.into_value(py));
            let _ = event_loop.call_method1(py, "call_soon_threadsafe", (Settle, told, result, error));
        });
    });
    awaited.call_method1("add_done_callback", (Abort(task.abort_handle()),))?;
    Ok(awaited)
}

//! Servers of remote calls whose handler is a Python function.

use std::sync::Arc;

use farcall_rpc::{Call, Handler, HandlerError, Reply};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Room;
use crate::error::{Refusal, raised};
use crate::held::Held;
use crate::options::{Options, plain};

/// A running server of remote calls.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct Server {
    server: Held<farcall_rpc::Server>,
    /// Address at which the server listens.
    #[pyo3(get)]
    address: String,
}

struct Service(Arc<Py<PyAny>>);

impl Handler for Service {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let answered =
            Python::try_attach(|py| self.answer(py, call, reply).map_err(|error| refusal(py, error)));
        answered.unwrap_or_else(|| Err(HandlerError::new(0, "the interpreter of the server ends")))
    }
}

impl Service {
    fn answer(&self, py: Python<'_>, call: &Call<'_>, reply: &mut Reply<'_>) -> PyResult<()> {
        // The request is copied: it is valid only during the call, and Python code may keep the object.
        let answer = self.0.bind(py).call1((call.method(), PyBytes::new(py, call.payload())))?;
        if !answer.is_none() {
            Room::of(&answer)?.read(|bytes| reply.extend_from_slice(bytes));
        }
        Ok(())
    }
}

/// Returns the error of a call whose handler raised an exception. `Refusal` contains the code and the text. Any other
/// exception is passed to `sys.unraisablehook`, which prints it, and refuses the call with the code 0.
fn refusal(py: Python<'_>, error: PyErr) -> HandlerError {
    if error.is_instance_of::<Refusal>(py)
        && let Ok((code, text)) =
            error.value(py).getattr("args").and_then(|given| given.extract::<(u16, String)>())
        && code < 1 << 15
    {
        return HandlerError::new(code, text);
    }
    let text = error.to_string();
    error.write_unraisable(py, None);
    HandlerError::new(0, text)
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (address, handler, options=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        handler: Py<PyAny>,
        options: Option<&Bound<'_, Options>>,
    ) -> PyResult<Self> {
        let (options, handler) = (plain(options), Arc::new(handler));
        let started = py.detach(|| options.serve(address, move || Service(Arc::clone(&handler))));
        let server = started.map_err(|failure| raised(py, failure))?;
        Ok(Self { address: server.address().to_string(), server: Held::new(server) })
    }

    /// Finishes the calls received so far, then ends the threads.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.server.close(py, |server| {
            server.drain();
            server.join();
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.stop(py)
    }
}

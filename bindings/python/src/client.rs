//! Clients of remote calls.

use farcall::binding::Failure;
use farcall_rpc::CallOptions;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::{Sent, lent};
use crate::error::raised;
use crate::held::Held;
use crate::options::{Options, duration, plain};
use crate::task;

/// A client of remote calls with blocking functions.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct Client(Held<farcall_rpc::Client>);

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address, options=None))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, Options>>) -> PyResult<Self> {
        let options = plain(options);
        let connected = py.detach(|| options.connect_client(address));
        Ok(Self(Held::new(connected.map_err(|failure| raised(py, failure))?)))
    }

    /// Calls a method, waits for the result and returns it as a read-only memoryview. `timeout` is in seconds; the
    /// default is that of the options.
    #[pyo3(signature = (method, request=None, *, timeout=None))]
    fn call(
        &self,
        py: Python<'_>,
        method: u16,
        request: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let request = request.map(Sent::of).transpose()?;
        let options = CallOptions::new().timeout(duration(py, timeout)?);
        let reply = self.0.wait(py, |client| {
            let mut reply = Vec::new();
            client.call_with(method, request.as_ref().map_or(&[], Sent::get), &mut reply, options)?;
            Ok(reply)
        })?;
        lent(py, reply)
    }

    /// Closes the client.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, |_| Ok(()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

/// A client of remote calls for asyncio. Many calls can be in flight concurrently.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct AsyncClient(farcall_rpc::AsyncClient);

#[pymethods]
impl AsyncClient {
    /// Connects to a server.
    #[staticmethod]
    #[pyo3(signature = (address, options=None))]
    fn connect<'py>(
        py: Python<'py>,
        address: String,
        options: Option<&Bound<'py, Options>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let connecting = plain(options).connect_async_client(address);
        task::spawn(py, connecting, |py, client| Ok(Py::new(py, Self(client))?.into_any()))
    }

    /// Calls a method and returns the result as a read-only memoryview. Cancelling abandons the call. `timeout` is in
    /// seconds; the default is that of the options. A call without a result by then fails.
    #[pyo3(signature = (method, request=None, *, timeout=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        method: u16,
        request: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (client, request) = (self.0.clone(), request.map(Sent::of).transpose()?);
        let options = CallOptions::new().timeout(duration(py, timeout)?);
        let call = async move {
            let request = request.as_ref().map_or(&[][..], Sent::get);
            client.call_with(method, request, options).await.map_err(Failure::from)
        };
        task::spawn(py, call, lent)
    }
}

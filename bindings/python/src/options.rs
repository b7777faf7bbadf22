//! Options of clients, servers, listeners and streams.

use std::time::Duration;

use farcall::binding::{Failure, Options as Plain};
use farcall::select::{ProviderChoice, Selection};
use pyo3::prelude::*;

use crate::error::raised;

/// Options of a client, a server, a listener or a stream. Timeouts are in seconds.
#[pyclass(frozen, module = "farcall")]
#[derive(Clone)]
pub(crate) struct Options(Plain);

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (
        *, provider=None, device=None, gid_index=None, preset=None, thread=0, threads=1, connect_timeout=None,
        call_timeout=None, nonblocking=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        py: Python<'_>,
        provider: Option<&str>,
        device: Option<String>,
        gid_index: Option<u32>,
        preset: Option<String>,
        thread: u16,
        threads: u16,
        connect_timeout: Option<f64>,
        call_timeout: Option<f64>,
        nonblocking: bool,
    ) -> PyResult<Self> {
        let choice = provider.map(str::parse::<ProviderChoice>).transpose();
        let choice = choice.map_err(|unknown| raised(py, Failure::invalid(unknown)))?.unwrap_or_default();
        Ok(Self(Plain {
            selection: Selection { provider: choice, device, gid_index },
            preset,
            thread,
            threads,
            connect_timeout: duration(py, connect_timeout)?,
            call_timeout: duration(py, call_timeout)?,
            nonblocking,
        }))
    }
}

/// Returns the options that a program passes, or the defaults.
pub(crate) fn plain(options: Option<&Bound<'_, Options>>) -> Plain {
    options.map(|options| options.get().0.clone()).unwrap_or_default()
}

/// Converts a time in seconds; `None` remains `None`.
pub(crate) fn duration(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds: f64| {
        let invalid = |error| raised(py, Failure::invalid(format!("{seconds} seconds: {error}")));
        Duration::try_from_secs_f64(seconds).map_err(invalid)
    };
    seconds.map(convert).transpose()
}

//! Exceptions for failures.

use farcall::binding::{Code, Failure};
use farcall_rpc::Executed;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(farcall, Error, PyException, "A failure, with its number in `code`.");
create_exception!(
    farcall,
    Refusal,
    PyException,
    "Raised by a handler: Refusal(code, text) refuses the call."
);

/// Returns the names of all codes in the order of their numbers.
pub(crate) fn codes() -> Vec<&'static str> {
    Code::ALL.iter().map(|code| code.name()).collect()
}

/// Returns the exception for a failure.
pub(crate) fn raised(py: Python<'_>, failure: Failure) -> PyErr {
    let error = Error::new_err(failure.message);
    let executed = match failure.code.executed() {
        Executed::Yes => Some(true),
        Executed::No => Some(false),
        Executed::Unknown => None,
    };
    let value = error.value(py);
    let set = value
        .setattr("code", failure.code as i32)
        .and_then(|()| value.setattr("executed", executed))
        .and_then(|()| value.setattr("application_code", failure.application_code));
    set.err().unwrap_or(error)
}

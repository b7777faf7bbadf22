//! The Python package of Farcall: a translation of the Rust interface, without policy of its own.
//!
//! `python/farcall/` contains the type stubs and the classes that are written in Python. This crate is the extension
//! module `_farcall`, on which they are built.
//!
//! * A function that waits releases the GIL, so that other Python threads run.
//! * Memory that Python code may change is accessed only by a thread that holds the GIL, hence by one thread at a time.
//!   `bytes` objects are immutable, so they are sent without a copy.
//! * Results of calls are not copied. Python reads them through the buffer protocol.

mod buffer;
mod client;
mod error;
mod held;
mod kv;
mod options;
mod server;
mod stream;
mod task;

use pyo3::prelude::*;

/// The extension module that the package `farcall` imports.
#[pymodule]
mod _farcall {
    #[pymodule_export]
    use crate::client::{AsyncClient, Client};
    #[pymodule_export]
    use crate::error::{Error, Refusal};
    #[pymodule_export]
    use crate::kv::{Item, Kv};
    #[pymodule_export]
    use crate::options::Options;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::stream::{Listener, Stream};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("CODES", super::error::codes())
    }
}

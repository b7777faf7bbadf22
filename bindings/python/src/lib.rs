//! The Python package of Farcall: a translation of the Rust interface, which decides nothing.
//!
//! `python/farcall/` has the types for type checkers and what is written in Python; this is the module below it.
//!
//! * Whoever waits has let the interpreter go: other threads run on.
//! * Memory that Python code may change is read and written only by who holds the interpreter, so never by two at once.
//!   `bytes` never change: they are sent from where they are.
//! * Results of calls are lent to Python as they came, through the buffer protocol.

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

/// What `farcall` imports.
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

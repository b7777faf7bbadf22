//! The library. It is loaded once and never unloaded, because its device drivers do not support that.

use std::ffi::c_int;
use std::sync::OnceLock;

use farcall_layout::Functions;
use farcall_verbs::{Error, Result};

use crate::NAME;

/// File name of the library on every distribution.
pub(crate) const FILE: &str = "libibverbs.so.1";

pub(crate) const INSTALL: &str = "install it: apt-get install libibverbs1 ibverbs-providers (Debian, Ubuntu), \
                                  dnf install libibverbs (Fedora, RHEL)";

/// `IBV_FORK_UNNEEDED`: the kernel copies pinned pages for a child process, as all kernels since 5.12 do.
const FORK_UNNEEDED: c_int = 2;

/// Returns the library of this machine.
///
/// # Errors
/// Returns an error if there is none, or if the file with its name is not libibverbs.
pub(crate) fn library() -> Result<&'static Functions> {
    static LIBRARY: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(|why| Error::Unsupported {
        operation: "load libibverbs",
        provider: NAME,
        what: format!("{why}; {INSTALL}"),
    })
}

fn load() -> std::result::Result<Functions, String> {
    // SAFETY: loading runs libibverbs' initialisers, which only set up its own state.
    let library = unsafe { libloading::Library::new(FILE) }.map_err(|error| error.to_string())?;
    // SAFETY: the library has libibverbs' name, and is leaked below, so it stays loaded.
    let functions = unsafe { Functions::find(&library) }.map_err(|error| error.to_string())?;
    survive_fork(&functions, &library);
    std::mem::forget(library);
    Ok(functions)
}

/// On kernels where a forked child may take over the pages that the NIC writes to, makes the library exclude them from
/// forks.
fn survive_fork(functions: &Functions, library: &libloading::Library) {
    // SAFETY: the function exists since rdma-core 35, with this type.
    let status = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ibv_is_fork_initialized\0") };
    // SAFETY: the function takes no arguments and only queries the kernel.
    let is_unneeded = status.is_ok_and(|status| unsafe { status() } == FORK_UNNEEDED);
    // SAFETY: `library` calls this once before any memory is registered, as `ibv_fork_init` requires.
    if !is_unneeded && unsafe { (functions.fork_init)() } != 0 {
        tracing::warn!(
            "ibv_fork_init failed: children of this process may take registered memory away from it"
        );
    }
}

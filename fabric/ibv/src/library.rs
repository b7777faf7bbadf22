//! The library: loaded once, never unloaded, because its device drivers do not survive that.

use std::ffi::c_int;
use std::sync::OnceLock;

use farcall_layout::Functions;
use farcall_verbs::{Error, Result};

use crate::NAME;

/// Under which name every distribution installs it.
pub(crate) const FILE: &str = "libibverbs.so.1";

pub(crate) const INSTALL: &str = "install it: apt-get install libibverbs1 ibverbs-providers (Debian, Ubuntu), \
                                  dnf install libibverbs (Fedora, RHEL)";

/// `IBV_FORK_UNNEEDED`: the kernel copies pinned pages for a child, as all do since 5.12.
const FORK_UNNEEDED: c_int = 2;

/// The library of this machine.
///
/// # Errors
/// If there is none, or what has its name is something else.
pub(crate) fn library() -> Result<&'static Functions> {
    static LIBRARY: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(|why| Error::Unsupported {
        operation: "load libibverbs",
        provider: NAME,
        what: format!("{why}; {INSTALL}"),
    })
}

fn load() -> std::result::Result<Functions, String> {
    // SAFETY: libibverbs' initialisers only set up its own state.
    let library = unsafe { libloading::Library::new(FILE) }.map_err(|error| error.to_string())?;
    // SAFETY: the name is libibverbs'; the library is leaked below.
    let functions = unsafe { Functions::find(&library) }.map_err(|error| error.to_string())?;
    survive_fork(&functions, &library);
    std::mem::forget(library);
    Ok(functions)
}

/// On kernels that would give a child the pages our NIC writes to, has the library keep them out of it.
fn survive_fork(functions: &Functions, library: &libloading::Library) {
    // SAFETY: since rdma-core 35, with this type.
    let status = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ibv_is_fork_initialized\0") };
    // SAFETY: takes nothing and looks at the kernel.
    let is_unneeded = status.is_ok_and(|status| unsafe { status() } == FORK_UNNEEDED);
    // SAFETY: called before any memory is registered, as it must.
    if !is_unneeded && unsafe { (functions.fork_init)() } != 0 {
        tracing::warn!(
            "ibv_fork_init failed: children of this process may take registered memory away from it"
        );
    }
}

//! Variables of the environment, for libraries: a program that loads them may have more rights than who started it.

use std::ffi::OsString;

/// A variable that is set and not empty; `None` in a program that has more rights than who started it (set-uid, file
/// capabilities): there the environment is a stranger's.
pub fn trusted_variable(name: &str) -> Option<OsString> {
    // SAFETY: no memory is involved.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|value| !is_privileged && !value.is_empty())
}

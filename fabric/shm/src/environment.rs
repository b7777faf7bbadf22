//! Environment variables for libraries, which may be loaded into a program with more privileges than the user that
//! started it.

use std::ffi::OsString;

/// Returns a variable that is set and not empty. Returns `None` in a program that has more privileges than the user
/// that started it (set-uid, file capabilities), because the environment is untrusted there.
pub fn trusted_variable(name: &str) -> Option<OsString> {
    // SAFETY: getauxval takes an integer and reads the auxiliary vector, which exists in every process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|value| !is_privileged && !value.is_empty())
}

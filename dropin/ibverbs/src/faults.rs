//! The faults that FARCALL_FAULTS configures.

use std::ffi::c_int;

use farcall_faults::{Fault, Faults, VARIABLE};

/// Writes a fault to the trace.
fn trace_fault(fault: &Fault) {
    farcall_trace::note("fault", |line| {
        line.key("kind").word(fault.key);
        if let Some((qp_num, index)) = fault.pair {
            line.key("qp").qpn(qp_num);
            line.key("pair").number(index);
        }
        line.key("number").number(fault.number);
    });
}

/// Returns the configured faults.
///
/// # Errors
/// Returns `EINVAL`, and prints the reason to standard error, if the variable is invalid: a program must not silently
/// run without the faults.
pub fn asked_for() -> Result<Option<Faults>, c_int> {
    Faults::from_env(Some(trace_fault)).map_err(|error| {
        crate::complain(format_args!("{VARIABLE}: {error}"));
        libc::EINVAL
    })
}

//! The faults that FARCALL_FAULTS asks for.

use std::ffi::c_int;

use farcall_faults::{Fault, Faults, VARIABLE};

/// Shows a fault among the calls that meet it.
fn show(fault: &Fault) {
    farcall_trace::note("fault", |line| {
        line.key("kind");
        line.word(fault.key);
        if let Some((qp_num, index)) = fault.pair {
            line.key("qp");
            line.qpn(qp_num);
            line.key("pair");
            line.number(index);
        }
        line.key("number");
        line.number(fault.number);
    });
}

/// What was asked for; `EINVAL`, said in words, if it cannot be understood: a program must not believe to have met faults.
pub fn asked_for() -> Result<Option<Faults>, c_int> {
    Faults::from_env(Some(show)).map_err(|error| {
        crate::complain(format_args!("{VARIABLE}: {error}"));
        libc::EINVAL
    })
}

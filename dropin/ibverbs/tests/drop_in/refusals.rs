//! Refused calls report their reason, also those through driver interfaces.

use crate::compile::{can_compile, compile, compile_with};
use crate::support::{Folder, Running, system_library, words};

#[test]
fn refusals_say_why() {
    if !can_compile() {
        return;
    }
    let folder = Folder::new("refusals");
    let program = compile(&folder, "refusals");
    let mut command = folder.program(&program);
    command.env("FARCALL_TRACE", folder.path("trace"));
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success() && said.contains("done"), "{said}");
    let trace = folder.texts("trace").concat();
    for why in [
        "Rc, INIT to RTR: needs MIN_RNR_TIMER, too",
        "Rc, INIT to RTR: does not take QKEY",
        "ah_attr: on Ethernet a path has is_global = 1",
        "no transition of an Rc queue pair leads from INIT to RTS",
        "qp_type 9: there are RC (2), UC (3) and UD (4)",
        "max_send_wr",
    ] {
        let is_said = trace.lines().any(|line| line.contains("-- refused {why=") && line.contains(why));
        assert!(is_said, "no {why:?} in:\n{trace}");
    }
    // The most common error of programs written for InfiniBand is reported once, without a trace.
    assert_eq!(said.matches("on Ethernet a path has").count(), 1, "{said}");
}

#[test]
fn reports_a_missing_socket_directory_without_tracing() {
    if !can_compile() {
        return;
    }
    let folder = Folder::new("refusals-machine");
    let program = compile(&folder, "refusals");
    let mut command = folder.program(&program);
    command.env("FARCALL_SOCKET_DIR", folder.path("nowhere"));
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(!output.status.success() && said.contains("does FARCALL_SOCKET_DIR exist"), "{said}");
}

#[test]
fn drivers_own_interfaces_say_that_they_have_no_device() {
    if !can_compile() {
        return;
    }
    for library in ["libmlx5.so", "libefa.so"] {
        if system_library(library, "libibverbs-dev").is_none() {
            return;
        }
    }
    let folder = Folder::new("vendors");
    let program = compile_with(&folder, "vendors", &["-lmlx5", "-lefa"]);
    let output = Running::start(folder.program(&program)).finish();
    assert!(output.status.success() && words(&output).contains("done"), "{}", words(&output));
}

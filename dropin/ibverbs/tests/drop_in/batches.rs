//! C programs, compiled with the system's header, that use this library instead of the system's.

use crate::compile::{can_compile, compile};
use crate::support::{Folder, Running, words};

#[test]
fn a_region_is_registered_anew_as_the_man_page_says() {
    if !can_compile() {
        return;
    }
    let folder = Folder::new("rereg");
    let program = compile(&folder, "rereg");
    for most_moved in ["256", "0"] {
        let mut command = folder.program(&program);
        command.env("FARCALL_MOVE_MIB", most_moved).env("FARCALL_TRACE", folder.path("trace"));
        let output = Running::start(command).finish();
        assert!(output.status.success() && words(&output).contains("done"), "{}", words(&output));
    }
    let trace = folder.texts("trace").concat();
    for shown in [
        ", flags=CHANGE_TRANSLATION|CHANGE_PD|CHANGE_ACCESS, pd=0x",
        ", flags=CHANGE_TRANSLATION, pd=NULL, addr=0x",
        ") = -1 EINVAL",
        ") = -4 EFAULT",
    ] {
        assert!(trace.contains(shown), "no {shown} in {trace}");
    }
}

#[test]
fn posts_batches_of_program_memory_completely_or_not_at_all() {
    if !can_compile() {
        return;
    }
    let folder = Folder::new("batches");
    let program = compile(&folder, "batches");
    for unmoved in [false, true] {
        let mut command = folder.program(&program);
        if unmoved {
            command.env("FARCALL_MOVE_MIB", "0").env("UNMOVED", "1");
        }
        let output = Running::start(command).finish();
        assert!(output.status.success() && words(&output).contains("done"), "{}", words(&output));
    }
}

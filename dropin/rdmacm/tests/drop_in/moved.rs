//! Memory that programs register while the connection manager's thread runs, which is not a thread of the program.

use crate::meeting::{compile, folder};
use crate::support::{Running, words};

/// The C program queries the kernel for the location of its memory.
#[test]
fn moves_memory_despite_the_connection_manager_thread() {
    let folder = folder("moved");
    let Some(program) = compile("moved.c", &folder) else { return };
    for case in ["alone", "threads"] {
        let mut command = folder.program(&program);
        command.arg(case);
        let output = Running::start(command).finish();
        assert!(output.status.success() && words(&output).contains("ok"), "{case}: {}", words(&output));
    }
}

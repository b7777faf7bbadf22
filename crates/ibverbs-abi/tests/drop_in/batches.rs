//! A program in C, against the system's header, on the library in the place of the system's.

use std::path::Path;
use std::process::Command;

use crate::support::{Folder, Running, has, words};

#[test]
fn batches_are_posted_all_or_not_at_all_and_registered_memory_is_the_programs_own() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("SKIPPED: no infiniband/verbs.h on this machine (Debian: apt-get install libibverbs-dev)");
        return;
    }
    if !has("cc", "gcc") {
        return;
    }
    let folder = Folder::new("batches");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drop_in/batches.c");
    let program = folder.path("batches");
    let compiled =
        Command::new("cc").args(["-Wall", "-o"]).arg(&program).args([source, "-libverbs"]).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", words(&compiled));
    for unmoved in [false, true] {
        let mut command = folder.program(&program);
        if unmoved {
            command.env("FARCALL_MOVE_MIB", "0").env("UNMOVED", "1");
        }
        let output = Running::start(command).finish();
        assert!(output.status.success() && words(&output).contains("done"), "{}", words(&output));
    }
}

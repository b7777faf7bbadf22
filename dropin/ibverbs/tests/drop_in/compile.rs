//! C programs, compiled with the system's header.

use std::path::Path;
use std::process::Command;

use crate::support::{Folder, has, words};

/// Returns whether there are a compiler and the header; prints what is skipped otherwise.
pub fn can_compile() -> bool {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("SKIPPED: no infiniband/verbs.h on this machine (Debian: apt-get install libibverbs-dev)");
        return false;
    }
    has("cc", "gcc")
}

/// Compiles a program of these tests, which may include files of that directory. Returns its path.
pub fn compile(folder: &Folder, name: &str) -> String {
    compile_with(folder, name, &[])
}

/// Like [`compile`], with additional libraries.
pub fn compile_with(folder: &Folder, name: &str, libraries: &[&str]) -> String {
    let source = format!("{}/tests/drop_in/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = folder.path(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-pthread", "-I", &folder.path(""), "-o", &program, &source]);
    cc.args(libraries).arg("-libverbs");
    let compiled = cc.output().unwrap();
    assert!(compiled.status.success(), "{cc:?}: {}", words(&compiled));
    program
}

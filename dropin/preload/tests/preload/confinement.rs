//! Programs that restrict their system calls, and programs of AddressSanitizer.

use crate::support::{TestDirectory, both_ends, compile, compile_with, moved_bytes, program, reasons};

#[test]
fn serves_under_a_filter_that_is_installed_later() {
    let directory = TestDirectory::new("seccomp");
    let Some(path) = compile(&directory, "seccomp") else { return };
    for method in ["prctl", "number"] {
        let plain = both_ends(&path, false, [method, method]);
        assert!(plain.server.1.success() && plain.client.1.success(), "{}", plain.server.0);
        let ends = both_ends(&path, true, [method, method]);
        assert!(ends.server.1.success(), "{}: {}", ends.server.1, ends.server.0);
        assert!(ends.client.1.success() && ends.client.0.ends_with("done\n"), "{}", ends.client.0);
        assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 10));
        let why = reasons(ends.pids[0]);
        assert!(
            why.is_empty() || why.contains(&"back on TCP: the program restricts its system calls"),
            "{why:?}"
        );
    }
}

/// With the variable that `farcall run` sets; see the tests of that command.
#[test]
fn moves_programs_of_address_sanitizer() {
    let directory = TestDirectory::new("sanitizer");
    let source = directory.path("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut probe = program("cc", false);
    probe.args(["-fsanitize=address", "-o", &directory.path("empty"), &source]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no compiler with AddressSanitizer on this machine (Debian: apt-get install gcc)");
        return;
    }
    let Some(path) = compile_with(&directory, "calls", "sanitized", &["-fsanitize=address"]) else { return };
    let script = directory.path("sanitized.sh");
    let text = format!("#!/bin/sh\nexport ASAN_OPTIONS=verify_asan_link_order=0\nexec {path} \"$@\"\n");
    std::fs::write(&script, text).unwrap();
    assert!(program("chmod", false).args(["700", &script]).status().unwrap().success());
    let ends = both_ends(&script, true, ["x", "x"]);
    for (text, status) in [&ends.server, &ends.client] {
        assert!(status.success() && text.ends_with("done\n"), "{status}: {text}");
    }
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 100));
}

//! Bytes that do not pass the library: functions of the C library, system calls of programs, other processes.

use std::path::Path;

use farcall_stats::read_pid;

use crate::support::{
    Ends, TestDirectory, both_ends, compile, compile_with, has, moved_bytes, program, reasons,
};

const DIRECT: &str = "the program can make system calls itself";

fn assert_done(ends: &Ends) {
    for (text, status) in [&ends.server, &ends.client] {
        assert!(status.success() && text.ends_with("done\n"), "{status}: {text}");
    }
}

/// Runs both ends with variables set.
fn with_variables(directory: &TestDirectory, path: &str, variables: &str, method: &str) -> Ends {
    let script = directory.path("with-variables.sh");
    std::fs::write(&script, format!("#!/bin/sh\nexport {variables}\nexec {path} \"$@\"\n")).unwrap();
    assert!(program("chmod", false).args(["700", &script]).status().unwrap().success());
    both_ends(&script, true, [method, method])
}

#[test]
fn keeps_order_of_all_output_and_input_functions() {
    let directory = TestDirectory::new("functions");
    let Some(path) = compile(&directory, "functions") else { return };
    assert_done(&both_ends(&path, false, ["x", "x"]));
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 0));
}

#[test]
fn keeps_order_where_a_child_gets_the_connection() {
    let directory = TestDirectory::new("children");
    let Some(path) = compile(&directory, "children") else { return };
    assert_done(&both_ends(&path, false, ["x", "x"]));
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 0));
}

#[test]
fn leaves_programs_with_direct_calls_on_tcp() {
    let directory = TestDirectory::new("direct");
    let Some(path) = compile(&directory, "direct") else { return };
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends);
    for pid in ends.pids {
        assert!(moved_bytes(pid).is_none_or(|bytes| bytes == 0));
    }
    let why = reasons(ends.pids[0]);
    assert!(why.is_empty() || why.contains(&DIRECT), "{why:?}");
    // What was found is reported once.
    if let Ok(report) = read_pid(ends.pids[0]) {
        let found = report.blocks.iter().filter(|block| block.label.starts_with("direct calls in /"));
        assert_eq!(found.count(), 1, "{report:?}");
    }
}

#[test]
fn moves_programs_whose_direct_calls_use_no_socket() {
    let directory = TestDirectory::new("harmless");
    let Some(path) = compile_with(&directory, "direct", "harmless", &["-DHARMLESS"]) else { return };
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 50));
}

#[test]
fn returns_to_tcp_when_loaded_code_has_direct_calls() {
    let directory = TestDirectory::new("plugin");
    let Some(path) = compile_with(&directory, "direct", "loads", &["-DPLUGIN"]) else { return };
    let Some(plugin) =
        compile_with(&directory, "direct", "plugin.so", &["-DPLUGIN_ITSELF", "-shared", "-fPIC"])
    else {
        return;
    };
    let ends = with_variables(&directory, &path, &format!("PLUGIN_FILE={plugin}"), "x");
    assert_done(&ends);
    // It had moved before.
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 0));
    let why = reasons(ends.pids[0]);
    assert!(why.is_empty() || why.contains(&DIRECT), "{why:?}");
    // By a name that the loader searches in directories that the program states.
    let run_path = format!("-Wl,-rpath,{}", directory.path(""));
    let Some(path) = compile_with(&directory, "direct", "searches", &["-DPLUGIN", &run_path]) else { return };
    assert_done(&with_variables(&directory, &path, "PLUGIN_FILE=plugin.so", "x"));
}

#[test]
fn ends_connections_with_unannounced_bytes() {
    let directory = TestDirectory::new("unannounced");
    let Some(path) = compile(&directory, "direct") else { return };
    assert_done(&with_variables(&directory, &path, "FARCALL_RUN_ALLOW_DIRECT_CALLS=1", "closed"));
    let ends = with_variables(&directory, &path, "FARCALL_RUN_ALLOW_DIRECT_CALLS=1", "unannounced");
    assert_done(&ends);
    assert!(moved_bytes(ends.pids[1]).is_none_or(|bytes| bytes > 0));
    let why = reasons(ends.pids[1]);
    assert!(
        why.is_empty()
            || why.contains(&"ended: bytes arrived that the library of the other end had not sent"),
        "{why:?}"
    );
}

#[test]
fn leaves_programs_with_liburing_on_tcp() {
    let directory = TestDirectory::new("uring");
    if !Path::new("/usr/include/liburing.h").exists() || !has("cc", "gcc") {
        eprintln!("SKIPPED: no liburing on this machine (Debian: apt-get install liburing-dev)");
        return;
    }
    let Some(path) = compile_with(&directory, "uring", "uring", &["-luring"]) else { return };
    let plain = both_ends(&path, false, ["x", "x"]);
    if plain.server.0.contains("no io_uring") {
        eprintln!("SKIPPED: the system allows no io_uring");
        return;
    }
    assert_done(&plain);
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes == 0));
}

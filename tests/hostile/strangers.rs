//! Access of another user of the machine to what a server exposes: sockets and files.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::server::{Server, binary, farcall, stranger};

#[test]
#[ignore = "needs root, to become another user"]
fn another_user_cannot_use_the_unix_socket() {
    let server = Server::start("strangers-socket", &[]);
    let address = format!("unix:{}", server.place("unix"));
    let refused = stranger(binary()).args(["kv", "get", "k", "--server", &address]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(4) && error.contains("Permission denied"), "{refused:?}");
    server.assert_serves();
}

#[test]
#[ignore = "needs root, to become another user"]
fn another_user_is_refused_over_rpc() {
    let server = Server::start("strangers-rpc", &[]);
    let address = format!("rpc:{}", server.place("rpc"));
    let refused = stranger(binary()).args(["kv", "get", "k", "--server", &address]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() != Some(0) && refused.status.code() != Some(3), "{refused:?}");
    assert!(error.contains("remedy:"), "{error}");
    server.assert_serves();
}

/// memcached's protocol has no users: TCP serves every client that reaches the address.
#[test]
#[ignore = "needs root, to become another user"]
fn another_user_is_served_over_tcp_like_any_client() {
    let server = Server::start("strangers-tcp", &[]);
    let address = format!("tcp:{}", server.place("tcp"));
    let set = stranger(binary()).args(["kv", "set", "k", "v", "--server", &address]).output().unwrap();
    assert!(set.status.success(), "{set:?}");
    assert_eq!(server.kv(&["get", "k"]).stdout, b"v\n");
}

#[test]
#[ignore = "needs root, to become another user"]
fn another_user_reads_no_counters() {
    let server = Server::start("strangers-counters", &[]);
    let pid = server.pid().to_string();
    let own = farcall(&["stats", &pid]);
    assert!(own.status.success(), "{own:?}");
    let refused = stranger(binary()).args(["stats", &pid]).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

/// A set-user-ID copy of the program, which runs with the rights of this user whoever starts it; removed when this is
/// dropped.
struct SetUid(PathBuf);

impl SetUid {
    fn new() -> Self {
        let copy = std::env::temp_dir().join(format!("farcall-hostile-{}-set-uid", std::process::id()));
        // Copied by another process: a child that another test forks concurrently could otherwise inherit the copy
        // open for writing, so that it could not be executed.
        let installed =
            Command::new("install").args(["-m", "4755"]).arg(binary()).arg(&copy).status().unwrap();
        assert!(installed.success());
        Self(copy)
    }
}

impl Drop for SetUid {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
#[ignore = "needs root, to become another user"]
fn a_set_uid_program_takes_nothing_from_its_environment() {
    let program = SetUid::new();
    let mut run = stranger(&program.0);
    run.args(["bench", "verbs", "write", "--size", "64", "--repetitions", "1", "--duration-ms", "5"]);
    let output =
        run.env("FARCALL_SOCKET_DIR", "/nonexistent").env("FARCALL_GROUP", "nogroup").output().unwrap();
    assert!(output.status.success(), "the variables of a stranger were believed: {output:?}");
}

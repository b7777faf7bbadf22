//! Every example runs and exits successfully.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs an example that `cargo test` has built, and returns its output.
fn run(name: &str) -> String {
    // Tests are in `deps`, examples in a directory next to it.
    let mut folder: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.pop();
    let program = folder.join("examples").join(name);
    let output = Command::new(&program).stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("{}: {error}; cargo test builds examples, `--test examples` alone does not", program.display())
    });
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn echo_answers() {
    let said = run("echo");
    assert!(["REMOTE", "DIRECT", "MEMORY", "ACCESS"].iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn errors_tell_whether_the_handler_ran() {
    let said = run("errors_and_deadlines");
    assert!(said.contains("division by zero") && said.contains("outcome is unknown"), "{said}");
}

#[test]
fn verbs_work_between_processes() {
    assert!(run("verbs_between_processes").contains("hello by RDMA WRITE"));
}

#[test]
fn tasks_share_a_connection() {
    assert!(run("asynchronous").contains("100 calls over one connection"));
}

#[test]
fn an_embedded_store_serves_both_kinds_of_clients() {
    assert!(run("embedded_store").contains("greeting: hello again"));
}

#[test]
fn verbs_in_safe_rust_play_ping_pong() {
    assert!(run("verbs_pingpong").contains("1000 rounds between two processes"));
}

#[test]
fn verbs_wake_tasks() {
    assert!(run("verbs_tokio").contains("REMOTE DIRECT MEMORY ACCESS"));
}

#[test]
fn a_typed_service_answers_and_refuses() {
    let said = run("typed_service");
    assert!(said.contains("hello, world") && said.contains("who are you?"), "{said}");
}

/// These examples verify their results themselves.
#[test]
fn typed_errors_tasks_and_streams_are_as_the_guide_says() {
    ["typed_errors", "typed_tasks", "typed_stream"].iter().for_each(|name| _ = run(name));
}

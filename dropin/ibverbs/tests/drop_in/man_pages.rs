//! The examples of the man pages, as printed, in programs that provide what the examples presuppose.

use std::path::Path;
use std::process::Command;

use crate::compile::{can_compile, compile};
use crate::roff;
use crate::support::{Folder, Running, has, words};

/// Returns the source of an installed page; prints what is skipped if it is not there.
fn page(name: &str) -> Option<String> {
    let path = format!("/usr/share/man/man3/{name}.3.gz");
    if !Path::new(&path).exists() {
        eprintln!(
            "SKIPPED: no {path} on this machine (Debian: libibverbs-dev, unless dpkg leaves out documentation)"
        );
        return None;
    }
    if !has("gzip", "gzip") {
        return None;
    }
    let unpacked = Command::new("gzip").args(["-dc", &path]).output().unwrap();
    assert!(unpacked.status.success(), "{}", words(&unpacked));
    Some(String::from_utf8(unpacked.stdout).unwrap())
}

/// Removes lines of dots, where the reader's program continues.
fn as_c(example: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in example.lines() {
        match (line.trim(), lines.last()) {
            (".", Some(&"MEANWHILE")) => {}
            (".", _) => lines.push("MEANWHILE"),
            _ => lines.push(line),
        }
    }
    lines.join("\n") + "\n"
}

/// Compiles a program together with a page's examples, whose number must be `count`, and runs it on the library.
fn run(page_name: &str, count: usize, program: &str) {
    if !can_compile() {
        return;
    }
    let Some(page) = page(page_name) else { return };
    let examples = roff::examples(&page);
    assert_eq!(examples.len(), count, "{page_name} has other examples: {examples:#?}");
    let folder = Folder::new(program);
    for (example, number) in examples.iter().zip(1..) {
        std::fs::write(folder.path(&format!("{page_name}-{number}.inc")), as_c(example)).unwrap();
    }
    let program = compile(&folder, program);
    let output = Running::start(folder.program(&program)).finish();
    assert!(output.status.success() && words(&output).contains("done"), "{}", words(&output));
}

#[test]
fn man_page_examples_of_completion_events_run() {
    run("ibv_get_cq_event", 2, "cq_event");
}

#[test]
fn man_page_example_of_asynchronous_events_runs() {
    run("ibv_get_async_event", 1, "async_event");
}

#[test]
fn man_page_example_of_batches_runs() {
    run("ibv_wr_post", 1, "wr_post");
}

/// The device supports neither rules nor counters, and reports that.
#[test]
fn man_page_example_of_flows_compiles_and_is_refused() {
    run("ibv_create_flow", 1, "flow");
}

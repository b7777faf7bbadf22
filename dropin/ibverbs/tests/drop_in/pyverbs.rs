//! The tests of rdma-core's own Python bindings, as packaged by Debian: written for RNICs, without knowledge of this
//! library.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Folder, Running, words};

/// Directory of the python3-pyverbs package, whose tests are partly compressed.
const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";

/// Expected failures: a completion queue contains the completions that its queue pairs hold, so it cannot overrun, and
/// may also be resized to fewer entries than it has completions.
const OTHERWISE: [&str; 1] = ["test_resize_cq"];

/// Returns the names of tests with the result `how`.
fn ended<'a>(said: &'a str, how: &'a str) -> impl Iterator<Item = &'a str> {
    said.lines().filter_map(move |line| line.strip_prefix(how)?.split_whitespace().next())
}

/// Runs the tests with variables in their environment. Returns the directory of their output; `None` if they are not
/// installed.
fn pass(name: &str, variables: &[(&str, &str)], otherwise: &[&str]) -> Option<Folder> {
    if !Path::new(PACKAGED).join("base.py.gz").exists() {
        eprintln!("SKIPPED: no tests of rdma-core on this machine (Debian: apt-get install python3-pyverbs)");
        return None;
    }
    let folder = Folder::new(name);
    let tests = folder.path("tests");
    let mut copy = Command::new("sh");
    copy.args([
        "-ec",
        "cp -r \"$0\" \"$1\"; gunzip \"$1\"/*.gz; rm -f \"$1\"/test_mlx5* \"$1\"/test_efa*",
        PACKAGED,
    ]);
    copy.arg(&tests);
    let copied = Running::start(copy).finish();
    assert!(copied.status.success(), "{}", words(&copied));

    // Debian's modules require Debian's interpreter, which need not be the first one in the path.
    let mut command = folder.preloaded("/usr/bin/python3");
    command
        .arg(format!("{tests}/run_tests.py"))
        .args(["-v", "--dev", "softnic0"])
        .envs(variables.iter().copied());
    command.current_dir(folder.path(""));
    let said = words(&Running::start(command).finish());
    let mut failed: Vec<&str> = ended(&said, "ERROR: ").chain(ended(&said, "FAIL: ")).collect();
    failed.sort_unstable();
    assert_eq!(failed, otherwise, "{said}");
    let passed = said.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= 60, "only {passed} tests apply: {said}");
    Some(folder)
}

#[test]
fn the_tests_of_rdma_core_pass() {
    pass("pyverbs", &[], &OTHERWISE);
}

/// Their calls are traced, and their completions are delayed: neither affects them.
#[test]
fn passes_rdma_core_tests_under_trace_and_faults() {
    let variables = [
        ("FARCALL_TRACE", "%p.trace"),
        ("FARCALL_TRACE_FORMAT", "json"),
        ("FARCALL_FAULTS", "seed=1,delay=10us..100us"),
    ];
    let Some(folder) = pass("pyverbs-disturbed", &variables, &OTHERWISE) else { return };
    let traces = folder.texts(".trace");
    let lines: Vec<&str> = traces.iter().flat_map(|trace| trace.lines()).collect();
    let calls: HashSet<String> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .filter_map(|line| line["call"].as_str().map(str::to_owned))
        .collect();
    assert!(calls.len() >= 40, "{calls:?}");
}

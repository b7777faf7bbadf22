//! The tests of rdma-core's own Python bindings, as Debian packages them: written for RNICs, by people who never heard of us.

use std::path::Path;
use std::process::Command;

use crate::support::{Folder, Running, words};

/// Where python3-pyverbs puts them, some of them compressed.
const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";

/// What they expect and we do otherwise: a completion queue holds what its queue pairs have, so that it cannot overrun, and
/// may also be resized to less.
const OTHERWISE: [&str; 1] = ["test_resize_cq"];

/// The names of tests that ended in such a way.
fn ended<'a>(said: &'a str, how: &'a str) -> impl Iterator<Item = &'a str> {
    said.lines().filter_map(move |line| line.strip_prefix(how)?.split_whitespace().next())
}

#[test]
fn the_tests_of_rdma_core_pass() {
    if !Path::new(PACKAGED).join("base.py.gz").exists() {
        eprintln!("SKIPPED: no tests of rdma-core on this machine (Debian: apt-get install python3-pyverbs)");
        return;
    }
    let folder = Folder::new("pyverbs");
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

    // Debian's modules belong to Debian's interpreter, which need not be the first in the path.
    let mut command = folder.preloaded("/usr/bin/python3");
    command.arg(format!("{tests}/run_tests.py")).args(["-v", "--dev", "softnic0"]);
    let said = words(&Running::start(command).finish());
    let failed: Vec<&str> = ended(&said, "ERROR: ").chain(ended(&said, "FAIL: ")).collect();
    assert_eq!(failed, OTHERWISE, "{said}");
    let passed = said.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= 60, "only {passed} tests apply: {said}");
}

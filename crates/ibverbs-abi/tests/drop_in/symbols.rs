//! The names that programs link: everything the system's library offers, under the same versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// `name@@version` of everything that a library defines.
fn defined(library: &Path) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let output = output.expect("nm of binutils, which comes with the linker");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.contains("@@"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn everything_the_system_library_offers_is_here() {
    let system = ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib64/libibverbs.so.1"];
    let Some(system) = system.into_iter().map(Path::new).find(|path| path.exists()) else {
        eprintln!("SKIPPED: no libibverbs.so.1 on this machine (Debian: apt-get install libibverbs1)");
        return;
    };
    let ours = defined(&crate::support::library());
    assert!(ours.contains("ibv_create_qp@@IBVERBS_1.1"), "{ours:?}");
    let theirs = defined(system);
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

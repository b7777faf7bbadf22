//! The names that programs link: everything the system's library offers, under the same versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::meeting::connection_manager;

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
    let ours = defined(&connection_manager());
    assert!(ours.contains("rdma_connect@@RDMACM_1.0"), "{ours:?}");
    assert!(ours.contains("rdma_establish@@RDMACM_1.2"), "{ours:?}");
    let system = ["/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "/usr/lib64/librdmacm.so.1"];
    let Some(system) = system.into_iter().map(Path::new).find(|path| path.exists()) else {
        eprintln!("SKIPPED: no librdmacm.so.1 on this machine (Debian: apt-get install librdmacm1)");
        return;
    };
    let missing: Vec<String> = defined(system).difference(&ours).cloned().collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

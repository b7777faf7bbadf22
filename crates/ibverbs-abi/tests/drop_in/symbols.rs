//! The names that programs link: everything the system's library offers, under the same versions.

use crate::support::{defined, library, system_library};

#[test]
fn everything_the_system_library_offers_is_here() {
    let Some(system) = system_library("libibverbs.so.1", "libibverbs1") else { return };
    let ours = defined(&library());
    assert!(ours.contains("ibv_create_qp@@IBVERBS_1.1"), "{ours:?}");
    let theirs = defined(&system);
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

//! The names that programs link: all symbols of the system's library, and those of other systems, under the same
//! versions.

use crate::meeting::connection_manager;
use crate::support::{defined, exported, releases, system_library};

#[test]
fn everything_the_system_library_offers_is_here() {
    let ours = defined(&connection_manager());
    assert!(ours.contains("rdma_connect@@RDMACM_1.0"), "{ours:?}");
    assert!(ours.contains("rdma_establish@@RDMACM_1.2"), "{ours:?}");
    let Some(system) = system_library("librdmacm.so.1", "librdmacm1") else { return };
    let missing: Vec<String> = defined(&system).difference(&ours).cloned().collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

#[test]
fn everything_that_other_releases_offer_is_here() {
    let ours = exported(&connection_manager());
    let listed = releases(include_str!("releases.txt"));
    assert!(listed.len() > 70, "only {} are listed", listed.len());
    let wanted = listed.iter().map(|name| format!("{}@{}", name.name, name.node));
    let missing: Vec<String> = wanted.filter(|symbol| !ours.contains(symbol)).collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

//! The names that programs link: everything the system's library offers, under the same versions.

use crate::meeting::connection_manager;
use crate::support::{defined, system_library};

#[test]
fn everything_the_system_library_offers_is_here() {
    let ours = defined(&connection_manager());
    assert!(ours.contains("rdma_connect@@RDMACM_1.0"), "{ours:?}");
    assert!(ours.contains("rdma_establish@@RDMACM_1.2"), "{ours:?}");
    let Some(system) = system_library("librdmacm.so.1", "librdmacm1") else { return };
    let missing: Vec<String> = defined(&system).difference(&ours).cloned().collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

//! The names that programs link: all symbols of the system's library, and those of other systems, under the same
//! versions.

use std::collections::BTreeSet;

use crate::support::{defined, exported, library, releases, system_library};

#[test]
fn everything_the_system_library_offers_is_here() {
    let Some(system) = system_library("libibverbs.so.1", "libibverbs1") else { return };
    let ours = defined(&library());
    assert!(ours.contains("ibv_create_qp@@IBVERBS_1.1"), "{ours:?}");
    let theirs = defined(&system);
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "not offered: {missing:#?}");
}

/// Symbols for drivers are under a node of their releases: its number, and the last of the releases.
const PRIVATE_NODES: [(u32, u32); 5] = [(34, 56), (57, 58), (59, 63), (64, 64), (65, u32::MAX)];

/// The interface of 2006, with other structures, for which programs were linked until libibverbs 1.1: the dynamic
/// loader reports to them that it is missing. The rest of its node is in use.
const OF_2006: &str = "IBVERBS_1.0";

#[test]
fn exports_all_symbols_of_other_releases_but_the_2006_interface() {
    let listed = releases(include_str!("releases.txt"));
    let wanted: BTreeSet<String> = listed
        .iter()
        .flat_map(|name| match name.node.as_str() {
            "IBVERBS_PRIVATE" => PRIVATE_NODES
                .iter()
                .filter(|(_, last)| *last >= name.since)
                .map(|(node, _)| format!("{}@IBVERBS_PRIVATE_{node}", name.name))
                .collect(),
            node => vec![format!("{}@{node}", name.name)],
        })
        .chain(
            PRIVATE_NODES
                .iter()
                .map(|(node, _)| format!("verbs_register_driver_{node}@IBVERBS_PRIVATE_{node}")),
        )
        .collect();
    assert!(wanted.len() > 400, "only {} are listed", wanted.len());
    let newer: BTreeSet<&str> =
        listed.iter().filter(|name| name.node == "IBVERBS_1.1").map(|name| name.name.as_str()).collect();
    let ours = exported(&library());
    let (old, missing): (Vec<&String>, Vec<&String>) = wanted.difference(&ours).partition(|symbol| {
        symbol.split_once('@').is_some_and(|(name, node)| node == OF_2006 && newer.contains(name))
    });
    assert!(missing.is_empty(), "not offered: {missing:#?}");
    assert_eq!(old.len(), 33, "{old:#?}");
}

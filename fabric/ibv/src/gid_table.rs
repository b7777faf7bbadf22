//! Types of GIDs, read from sysfs (the library's own functions for this differ between versions).

use std::path::{Path, PathBuf};

use farcall_verbs::{Gid, GidEntry, GidType, LinkLayer};

use crate::survey::line;

fn attributes(device: &str, port_num: u8) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device).join("ports").join(port_num.to_string()).join("gid_attrs")
}

/// Returns the entries in use.
pub(crate) fn read(
    device: &str,
    port_num: u8,
    (layer, entries): (LinkLayer, u32),
    query: impl Fn(u32) -> Option<Gid>,
) -> Vec<GidEntry> {
    let folder = attributes(device, port_num);
    (0..entries)
        .filter_map(|index| query(index).map(|gid| (index, gid)))
        .filter(|(_, gid)| *gid != Gid::default())
        .map(|(index, gid)| GidEntry {
            index,
            gid,
            gid_type: gid_type(layer, &line(&folder.join("types").join(index.to_string()))),
            netdev: Some(line(&folder.join("ndevs").join(index.to_string()))).filter(|name| !name.is_empty()),
        })
        .collect()
}

/// Returns the type of an entry. The kernel uses one name for InfiniBand and RoCE version 1; the link layer
/// distinguishes them.
fn gid_type(layer: LinkLayer, word: &str) -> GidType {
    match (layer, word) {
        (LinkLayer::InfiniBand, _) => GidType::InfiniBand,
        (LinkLayer::Ethernet, "RoCE v2") => GidType::RoceV2,
        (LinkLayer::Ethernet, _) => GidType::RoceV1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_entries_are_left_out() {
        let gids = [Gid::default(), Gid::from_ipv4([10, 0, 0, 1].into())];
        let table =
            read("no-such-device", 1, (LinkLayer::Ethernet, 3), |index| gids.get(index as usize).copied());
        assert_eq!(table.len(), 1);
        assert_eq!((table[0].index, table[0].netdev.as_deref()), (1, None));
    }

    #[test]
    fn the_kernels_words_are_known() {
        let types = |layer| ["RoCE v2", "IB/RoCE v1"].map(|word| gid_type(layer, word));
        assert_eq!(types(LinkLayer::Ethernet), [GidType::RoceV2, GidType::RoceV1]);
        assert_eq!(types(LinkLayer::InfiniBand), [GidType::InfiniBand; 2]);
    }
}

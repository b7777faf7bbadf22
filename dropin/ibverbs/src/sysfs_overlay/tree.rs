//! The tree: the files that the kernel would provide for a virtual device, in a directory that only this user may
//! access.
//!
//! There is one tree for each user, network and version. Its name is derived from its contents and it is created in
//! one step, so that processes share it. It is in memory, has a few kilobytes, and is lost when the system restarts.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use farcall_softnic::SoftNic;
use farcall_verbs::{GidEntry, with_sources};

use crate::context::{LANES, PORT_CAP_FLAGS, SPEED_GBPS};

/// Contents of a path in the tree.
#[derive(Hash)]
enum Entry {
    File(String),
    Link(String),
}

/// Returns the path of the tree; `None` if it cannot be created, which is reported once.
pub fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| match make() {
        Ok(root) => Some(root),
        Err(error) => {
            crate::complain(format_args!(
                "no files of the device in /sys and /dev: {}",
                with_sources(&*error)
            ));
            None
        }
    })
    .as_deref()
}

fn make() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let entries = entries(&SoftNic::device_name()?, &SoftNic::gid_table());
    let mut hash = DefaultHasher::new();
    entries.hash(&mut hash);
    let folder = farcall_shm::private_memory_dir()?;
    let root = folder.join(format!("devices-{:016x}", hash.finish()));
    if !root.is_dir() {
        let beside = folder.join(format!(".devices-{}", std::process::id()));
        let _ = fs::remove_dir_all(&beside);
        let made = fill(&beside, &entries).and_then(|()| fs::rename(&beside, &root));
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&beside);
            // Another process may have created it first.
            if !root.is_dir() {
                return Err(error.into());
            }
        }
    }
    Ok(root)
}

fn fill(root: &Path, entries: &[(String, Entry)]) -> io::Result<()> {
    for (path, entry) in entries {
        let place = root.join(path);
        if let Some(folder) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        match entry {
            Entry::File(text) => fs::write(place, text)?,
            Entry::Link(target) => symlink(target, place)?,
        }
    }
    Ok(())
}

/// Returns the paths below the root and their contents.
fn entries(name: &str, gids: &[GidEntry]) -> Vec<(String, Entry)> {
    let guid = gids.first().map(|entry| quads(&entry.gid.0[8..])).unwrap_or_default();
    let device = format!("sys/devices/virtual/infiniband/{name}");
    let verbs = "sys/devices/virtual/infiniband_verbs";
    let links = [
        (format!("sys/class/infiniband/{name}"), format!("../../devices/virtual/infiniband/{name}")),
        (
            "sys/class/infiniband_verbs/uverbs0".into(),
            "../../devices/virtual/infiniband_verbs/uverbs0".into(),
        ),
        (format!("{device}/subsystem"), "../../../../class/infiniband".into()),
        (format!("{verbs}/uverbs0/subsystem"), "../../../../class/infiniband_verbs".into()),
        ("dev/infiniband/uverbs0".into(), character_device().into()),
    ];
    let rate = format!("{} Gb/sec (4X EDR)", LANES * SPEED_GBPS);
    let cap_mask = format!("{PORT_CAP_FLAGS:#010x}");
    let files = [
        ("sys/class/infiniband_verbs".to_owned(), "abi_version", "6"),
        (format!("{verbs}/uverbs0"), "abi_version", "1"),
        (format!("{verbs}/uverbs0"), "ibdev", name),
        (device.clone(), "fw_ver", env!("CARGO_PKG_VERSION")),
        (device.clone(), "node_desc", "farcall software RNIC"),
        (device.clone(), "node_guid", &guid),
        (device.clone(), "node_type", "1: CA"),
        (device.clone(), "sys_image_guid", &guid),
        (format!("{device}/ports/1"), "cap_mask", &cap_mask),
        (format!("{device}/ports/1"), "lid", "0x0"),
        (format!("{device}/ports/1"), "lid_mask_count", "0"),
        (format!("{device}/ports/1"), "link_layer", "Ethernet"),
        (format!("{device}/ports/1"), "phys_state", "5: LinkUp"),
        (format!("{device}/ports/1"), "rate", &rate),
        (format!("{device}/ports/1"), "sm_lid", "0x0"),
        (format!("{device}/ports/1"), "sm_sl", "0"),
        (format!("{device}/ports/1"), "state", "4: ACTIVE"),
        (format!("{device}/ports/1/pkeys"), "0", "0xffff"),
    ];
    let file = |path: String, text: &str| (path, Entry::File(format!("{text}\n")));
    let mut all: Vec<_> = links.into_iter().map(|(path, target)| (path, Entry::Link(target))).collect();
    all.extend(files.into_iter().map(|(folder, name, text)| file(format!("{folder}/{name}"), text)));
    for GidEntry { index, gid, netdev, .. } in gids {
        let at = |folder: &str| format!("{device}/ports/1/{folder}/{index}");
        all.push(file(at("gids"), &quads(&gid.0)));
        all.push(file(at("gid_attrs/types"), "RoCE v2"));
        all.push(file(at("gid_attrs/ndevs"), netdev.as_deref().unwrap_or_default()));
    }
    all
}

fn quads(bytes: &[u8]) -> String {
    let quads: Vec<String> = bytes.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
    quads.join(":")
}

/// Returns the target of the character device, for programs that only check whether there is one. Any user may open
/// it. If possible it is one that refuses writes: a program that uses the kernel's interface must not mistake silence
/// for success.
fn character_device() -> &'static str {
    if Path::new("/dev/full").exists() { "/dev/full" } else { "/dev/null" }
}

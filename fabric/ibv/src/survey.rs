//! What there is of RDMA on this machine, found without opening anything: for diagnoses.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::library::{self, FILE, INSTALL};

const DEVICES: &str = "/sys/class/infiniband";
const NODES: &str = "/dev/infiniband";

/// What to do where the kernel lists no device.
pub const NO_DEVICES: &str = "no RDMA device; load the RNIC's driver, or make a software one: \
                              modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";

/// A device that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// Its name.
    pub name: String,
    /// Whether a port of it is active.
    pub has_active_port: bool,
    /// Whether it is iWARP, which cannot be used here.
    pub is_iwarp: bool,
    /// Its node in /dev, if the kernel names one.
    pub node: Option<PathBuf>,
}

/// What can be wrong with a device before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It may be opened.
    Usable,
    /// The kernel knows the device, but programs have no way to it: no `ib_uverbs`, or a container without the node.
    Missing,
    /// This user may not open it.
    Forbidden,
}

impl KernelDevice {
    /// Whether its node is there for us.
    pub fn node_state(&self) -> NodeState {
        match &self.node {
            Some(node) if access(node, Access::READ_OK | Access::WRITE_OK).is_ok() => NodeState::Usable,
            Some(node) if node.exists() => NodeState::Forbidden,
            _ => NodeState::Missing,
        }
    }
}

/// The devices that the kernel has, whether they can be used or not.
pub fn kernel_devices() -> Vec<KernelDevice> {
    let mut names: Vec<String> = entries(Path::new(DEVICES));
    names.sort();
    names
        .into_iter()
        .map(|name| KernelDevice {
            has_active_port: has_active_port(&name),
            is_iwarp: is_iwarp(&name),
            node: node(&name),
            name,
        })
        .collect()
}

/// Whether libibverbs is there.
///
/// # Errors
/// Why not, and what to install.
pub fn library() -> Result<&'static str, String> {
    library::library().map(|_| FILE).map_err(|error| error.to_string())
}

/// How to install libibverbs with its drivers.
pub const fn install_library() -> &'static str {
    INSTALL
}

/// Whether the kernel calls the device an RNIC, its word for iWARP.
pub(crate) fn is_iwarp(device: &str) -> bool {
    line(&Path::new(DEVICES).join(device).join("node_type")).contains("RNIC")
}

/// What hinders a device.
pub(crate) fn node_state(name: &str) -> NodeState {
    let device = kernel_devices().into_iter().find(|device| device.name == name);
    device.map_or(NodeState::Missing, |device| device.node_state())
}

/// Whether the kernel says that a port of the device is up.
pub(crate) fn has_active_port(device: &str) -> bool {
    let ports = Path::new(DEVICES).join(device).join("ports");
    entries(&ports).iter().any(|port| line(&ports.join(port).join("state")).contains("ACTIVE"))
}

/// `uverbsN` of a device: the one whose `ibdev` names it.
fn node(device: &str) -> Option<PathBuf> {
    let verbs = Path::new("/sys/class/infiniband_verbs");
    let of_device = |uverbs: &String| line(&verbs.join(uverbs).join("ibdev")) == device;
    entries(verbs).into_iter().find(of_device).map(|uverbs| Path::new(NODES).join(uverbs))
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// A file's only line; empty where there is no such file.
pub(crate) fn line(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_node_is_missing() {
        let device = KernelDevice {
            name: "none".into(),
            has_active_port: false,
            is_iwarp: false,
            node: Some("/dev/infiniband/no-such-node".into()),
        };
        assert_eq!(device.node_state(), NodeState::Missing);
        assert_eq!(KernelDevice { node: Some("/dev/null".into()), ..device }.node_state(), NodeState::Usable);
        assert!(!has_active_port("no-such-device"));
    }
}

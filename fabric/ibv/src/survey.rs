//! RDMA devices of this machine, detected without opening any of them, for diagnostics.

use farcall_verbs::with_sources;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::library::{self, FILE, INSTALL};

const DEVICES: &str = "/sys/class/infiniband";
const NODES: &str = "/dev/infiniband";

/// Remedy if the kernel lists no device.
pub const NO_DEVICES: &str = "no RDMA device; load the RNIC's driver, or make a software one: \
                              modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";

/// A device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// Name.
    pub name: String,
    /// Whether one of its ports is active.
    pub has_active_port: bool,
    /// Whether it is an iWARP device, which this provider cannot use.
    pub is_iwarp: bool,
    /// Its node in /dev, if the kernel lists one.
    pub node: Option<PathBuf>,
}

/// Accessibility of a device's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The node can be opened.
    Usable,
    /// The kernel has the device, but programs cannot access it: no `ib_uverbs`, or a container without the node.
    Missing,
    /// This user may not open the node.
    Forbidden,
}

impl KernelDevice {
    /// Returns whether this process can open its node.
    pub fn node_state(&self) -> NodeState {
        match &self.node {
            Some(node) if access(node, Access::READ_OK | Access::WRITE_OK).is_ok() => NodeState::Usable,
            Some(node) if node.exists() => NodeState::Forbidden,
            _ => NodeState::Missing,
        }
    }
}

/// Returns the devices of the kernel, usable or not.
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

/// Returns the file name of libibverbs if it can be loaded.
///
/// # Errors
/// Returns the reason and the packages to install if it cannot.
pub fn library() -> Result<&'static str, String> {
    library::library().map(|_| FILE).map_err(|error| with_sources(&error))
}

/// Returns the commands that install libibverbs with its drivers.
pub const fn install_library() -> &'static str {
    INSTALL
}

/// Returns whether the kernel reports the node type RNIC, its term for iWARP devices.
pub(crate) fn is_iwarp(device: &str) -> bool {
    line(&Path::new(DEVICES).join(device).join("node_type")).contains("RNIC")
}

/// Returns the accessibility of a device's node.
pub(crate) fn node_state(name: &str) -> NodeState {
    let device = kernel_devices().into_iter().find(|device| device.name == name);
    device.map_or(NodeState::Missing, |device| device.node_state())
}

/// Returns whether the kernel reports an active port of the device.
pub(crate) fn has_active_port(device: &str) -> bool {
    let ports = Path::new(DEVICES).join(device).join("ports");
    entries(&ports).iter().any(|port| line(&ports.join(port).join("state")).contains("ACTIVE"))
}

/// Returns the node `uverbsN` of a device: the one whose `ibdev` contains the device's name.
fn node(device: &str) -> Option<PathBuf> {
    let verbs = Path::new("/sys/class/infiniband_verbs");
    let of_device = |uverbs: &String| line(&verbs.join(uverbs).join("ibdev")) == device;
    entries(verbs).into_iter().find(of_device).map(|uverbs| Path::new(NODES).join(uverbs))
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns the contents of a one-line file; empty if there is no such file.
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

//! The measured device.

use farcall_link::Nic;
use farcall_verbs::{DeviceAttr, PortChoice};

/// Attributes of a device.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Device name.
    pub device: String,
    /// Capabilities of the device.
    pub attr: DeviceAttr,
    /// Port and address of the device.
    pub port: PortChoice,
}

impl Survey {
    /// Returns the attributes of an open device.
    pub fn of(nic: &Nic) -> Self {
        Self { device: nic.device().to_string(), attr: nic.attr().clone(), port: nic.port().clone() }
    }
}

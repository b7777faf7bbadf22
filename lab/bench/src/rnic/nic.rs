//! The measured device.

use super::RnicError;
use farcall_link::Nic;
use farcall_verbs::{DeviceAttr, PortChoice, Provider};

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
    /// Queries the provider's first device.
    ///
    /// # Errors
    /// Returns an error if there is no device, or if it does not open.
    pub fn of(provider: &dyn Provider) -> Result<Self, RnicError> {
        let Nic { attr, port, .. } = Nic::open(provider)?;
        let device = provider.devices()?.first().map_or_else(String::new, |device| device.name().to_owned());
        Ok(Self { device, attr, port })
    }
}

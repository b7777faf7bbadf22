//! The device that is measured.

use super::RnicError;
use farcall_link::Nic;
use farcall_verbs::{DeviceAttr, PortChoice, Provider};

/// What a device says about itself.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Its name.
    pub device: String,
    /// What it can do.
    pub attr: DeviceAttr,
    /// How it is reached.
    pub port: PortChoice,
}

impl Survey {
    /// Asks the provider's first device.
    ///
    /// # Errors
    /// When there is none, or it does not open.
    pub fn of(provider: &dyn Provider) -> Result<Self, RnicError> {
        let Nic { attr, port, .. } = Nic::open(provider)?;
        let device = provider.devices()?.first().map_or_else(String::new, |device| device.name().to_owned());
        Ok(Self { device, attr, port })
    }
}

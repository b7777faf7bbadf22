//! The device that is measured.

use super::RnicError;
use farcall_verbs::{Context, DeviceAttr, PortChoice, ProtectionDomain, Provider};
use std::sync::Arc;

/// READs and atomics outstanding on a queue pair, where a device has as many.
const READS_OUTSTANDING: u8 = 16;

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
        Ok(open(provider)?.1)
    }
}

/// The opened device that an end uses.
pub(super) struct Nic {
    pub(super) context: Arc<dyn Context>,
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) attr: DeviceAttr,
    pub(super) port: PortChoice,
    pub(super) reads_outstanding: u8,
}

impl Nic {
    /// Opens the provider's first device.
    pub(super) fn open(provider: &dyn Provider) -> Result<Self, RnicError> {
        let (context, Survey { attr, port, .. }) = open(provider)?;
        let reads_outstanding = attr.max_qp_rd_atom.min(READS_OUTSTANDING);
        Ok(Self { pd: context.alloc_pd()?, context, attr, port, reads_outstanding })
    }
}

fn open(provider: &dyn Provider) -> Result<(Arc<dyn Context>, Survey), RnicError> {
    let devices = provider.devices()?;
    let device = devices
        .first()
        .ok_or_else(|| RnicError::Handshake(format!("provider {} has no device", provider.name())))?;
    let context = device.open()?;
    let attr = context.query_device()?;
    let port = PortChoice::automatic(&*context)?;
    Ok((context, Survey { device: device.name().to_owned(), attr, port }))
}

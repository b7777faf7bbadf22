//! An opened device with the resources that connections need.

use std::sync::Arc;

use farcall_verbs::{
    AhAttr, Context, DeviceAttr, Error, Gid, Mtu, PortChoice, ProtectionDomain, Provider, Result,
};

use crate::Entropy;

/// An open device, one protection domain on it, and the address by which peers reach its queue pairs. Clones share
/// them.
#[derive(Clone)]
pub struct Nic {
    provider: &'static str,
    device: Arc<str>,
    context: Arc<dyn Context>,
    pd: Arc<dyn ProtectionDomain>,
    port: PortChoice,
    attr: DeviceAttr,
    entropy: Entropy,
}

farcall_verbs::opaque_debug!(Nic { provider, device, port });

impl Nic {
    /// Opens a provider's first device.
    ///
    /// # Errors
    /// If the provider has no device, or opening it fails.
    pub fn open(provider: &dyn Provider) -> Result<Self> {
        let devices = provider.devices()?;
        let device = devices.first().ok_or_else(|| {
            Error::invalid("open device", format!("provider {} has no device", provider.name()))
        })?;
        Self::of(provider.name(), device.name(), device.open()?)
    }

    /// Creates a `Nic` from an opened device.
    ///
    /// # Errors
    /// If it has no active port with a GID, or a protection domain cannot be allocated.
    pub fn of(provider: &'static str, device: &str, context: Arc<dyn Context>) -> Result<Self> {
        let port = PortChoice::automatic(&*context)?;
        let pd = context.alloc_pd()?;
        let attr = context.query_device()?;
        Ok(Self { provider, device: device.into(), context, pd, port, attr, entropy: Entropy::System })
    }

    /// Returns the same device with another source of secrets and first packet numbers, for reproducible runs.
    #[must_use]
    pub fn with_entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = entropy;
        self
    }

    /// Returns the same device with another protection domain.
    #[must_use]
    pub fn with_pd(mut self, pd: Arc<dyn ProtectionDomain>) -> Self {
        self.pd = pd;
        self
    }

    /// Returns the name of the provider.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the opened device.
    pub fn context(&self) -> &Arc<dyn Context> {
        &self.context
    }

    /// Returns the protection domain of all objects created here.
    pub fn pd(&self) -> &Arc<dyn ProtectionDomain> {
        &self.pd
    }

    /// Returns the port and the GID by which peers reach it.
    pub fn port(&self) -> &PortChoice {
        &self.port
    }

    /// Returns the limits and capabilities of the device.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// Returns the source of the secrets and first packet numbers of its connections.
    pub fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Returns the current GID of the port: addresses of this host may have changed since the port was chosen.
    pub fn gid(&self) -> Gid {
        self.context.gid_now(&self.port.gid.entry).gid
    }

    /// Returns the MTU of the port.
    pub fn mtu(&self) -> Mtu {
        self.port.attr.active_mtu
    }

    /// Returns the MTU of connected queue pairs, with which a packet is not fragmented.
    pub fn path_mtu(&self) -> Mtu {
        self.context.whole_mtu().map_or(self.mtu(), |whole| whole.min(self.mtu()))
    }

    /// Returns the path to a peer.
    pub(crate) fn path_to(&self, gid: Gid, lid: u16) -> AhAttr {
        let index = self.context.gid_now(&self.port.gid.entry).index;
        // GID tables have fewer than 256 entries; the device would refuse a larger index.
        let sgid_index = u8::try_from(index).unwrap_or(u8::MAX);
        AhAttr { sgid_index, ..self.port.path_to(gid, lid) }
    }
}

//! An opened device with what connecting needs.

use std::sync::Arc;

use farcall_verbs::{
    AhAttr, Context, DeviceAttr, Error, Gid, Mtu, PortChoice, ProtectionDomain, Provider, Result,
};

use crate::Entropy;

/// A device, one protection domain on it, and the address its queue pairs are reached under.
#[derive(Clone)]
pub struct Nic {
    /// Its provider's name.
    pub provider: &'static str,
    /// The opened device.
    pub context: Arc<dyn Context>,
    /// The domain of everything made here.
    pub pd: Arc<dyn ProtectionDomain>,
    /// The port and the GID to be reached under.
    pub port: PortChoice,
    /// What the device can do.
    pub attr: DeviceAttr,
    /// Where the secrets and first packet numbers of its connections come from.
    pub entropy: Entropy,
}

impl Nic {
    /// Opens a provider's first device.
    ///
    /// # Errors
    /// If there is none, or it does not open.
    pub fn open(provider: &dyn Provider) -> Result<Self> {
        let devices = provider.devices()?;
        let device = devices.first().ok_or_else(|| {
            Error::invalid("open device", format!("provider {} has no device", provider.name()))
        })?;
        Self::of(provider.name(), device.open()?)
    }

    /// Uses an opened device.
    ///
    /// # Errors
    /// If it has no active port with a GID, or no protection domain can be made.
    pub fn of(provider: &'static str, context: Arc<dyn Context>) -> Result<Self> {
        let port = PortChoice::automatic(&*context)?;
        let pd = context.alloc_pd()?;
        let attr = context.query_device()?;
        Ok(Self { provider, context, pd, port, attr, entropy: Entropy::System })
    }

    /// The GID to be reached under now: addresses of this host may have changed since the port was chosen.
    pub fn gid(&self) -> Gid {
        self.context.gid_now(&self.port.gid.entry).gid
    }

    /// MTU of the port.
    pub fn mtu(&self) -> Mtu {
        self.port.attr.active_mtu
    }

    /// MTU of connected queue pairs: with it their packets go in one piece.
    pub fn path_mtu(&self) -> Mtu {
        self.context.whole_mtu().map_or(self.mtu(), |whole| whole.min(self.mtu()))
    }

    /// The path to a peer.
    pub(crate) fn path_to(&self, gid: Gid, lid: u16) -> AhAttr {
        let index = self.context.gid_now(&self.port.gid.entry).index;
        // Tables have fewer entries than this; an index beyond would be refused by the device.
        let sgid_index = u8::try_from(index).unwrap_or(u8::MAX);
        AhAttr { sgid_index, ..self.port.path_to(gid, lid) }
    }
}

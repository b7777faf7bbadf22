//! An opened device with what connecting needs.

use std::sync::Arc;

use farcall_verbs::{AhAttr, Context, Error, Gid, LinkLayer, Mtu, ProtectionDomain, Provider, Result};

/// A device, one protection domain on it, and the address its queue pairs are reached under.
#[derive(Clone)]
pub struct Nic {
    /// Its provider's name.
    pub provider: &'static str,
    /// The opened device.
    pub context: Arc<dyn Context>,
    /// The domain of everything made here.
    pub pd: Arc<dyn ProtectionDomain>,
    /// The GID to be reached under.
    pub gid: Gid,
    /// That GID's index.
    pub gid_index: u8,
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// MTU of the port.
    pub mtu: Mtu,
    /// Bytes of inline data a queue pair may have.
    pub inline_max_bytes: u32,
}

const PORT: u8 = 1;

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
    /// If its port or GID cannot be queried, or no protection domain can be made.
    pub fn of(provider: &'static str, context: Arc<dyn Context>) -> Result<Self> {
        let port = context.query_port(PORT)?;
        let (gid_index, gid) = choose_gid(&*context, port.gid_tbl_len, port.link_layer)?;
        let pd = context.alloc_pd()?;
        let inline_max_bytes = context.query_device()?.max_inline_data;
        Ok(Self {
            provider,
            context,
            pd,
            gid,
            gid_index,
            lid: port.lid,
            mtu: port.active_mtu,
            inline_max_bytes,
        })
    }

    /// The path to a peer.
    pub(crate) fn path_to(&self, gid: Gid, lid: u16) -> AhAttr {
        AhAttr { dgid: gid, sgid_index: self.gid_index, dlid: lid, port_num: PORT, ..AhAttr::default() }
    }
}

/// On Ethernet a routable address is an IPv4-mapped GID; the last such entry is RoCEv2's where v1 and v2 alternate.
/// Anything else is taken from the start of the table.
fn choose_gid(context: &dyn Context, entries: u32, layer: LinkLayer) -> Result<(u8, Gid)> {
    let first = context.query_gid(PORT, 0)?;
    if layer == LinkLayer::InfiniBand {
        return Ok((0, first));
    }
    let mapped = |gid: &Gid| gid.0[..10] == [0; 10] && gid.0[10..12] == [0xff; 2];
    let table =
        (0..entries.min(256)).filter_map(|i| context.query_gid(PORT, i).ok().map(|gid| (i as u8, gid)));
    Ok(table.filter(|(_, gid)| mapped(gid)).last().unwrap_or((0, first)))
}

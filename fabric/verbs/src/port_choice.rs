//! Choice of the port and the GID through which peers reach a device's queue pairs.

use std::fmt;

use crate::{Access, AhAttr, Context, Error, Gid, GidChoice, PortAttr, PortState, QpAttr, Result};

/// A port and its GID: the local address data for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChoice {
    /// The port's number.
    pub port_num: u8,
    /// Its attributes when it was chosen.
    pub attr: PortAttr,
    /// The local GID on the port.
    pub gid: GidChoice,
}

impl PortChoice {
    /// Chooses the first active port, and its GID as [`Context::choose_gid`] does.
    ///
    /// # Errors
    /// Returns an error if no port is active or the port has no GID.
    pub fn automatic(context: &dyn Context) -> Result<Self> {
        let ports = context.query_device()?.phys_port_cnt;
        for port_num in 1..=ports {
            let attr = context.query_port(port_num)?;
            if attr.state == PortState::Active {
                return Ok(Self { port_num, attr, gid: context.choose_gid(port_num)? });
            }
        }
        Err(Error::invalid(
            "choose port",
            format!(
                "none of the device's {ports} ports is active; set its network device up (ip link set DEV up), check \
                 the cable, on InfiniBand also the subnet manager"
            ),
        ))
    }

    /// Returns the local GID.
    pub fn own_gid(&self) -> Gid {
        self.gid.entry.gid
    }

    /// Returns the attributes of RESET → INIT on this port.
    pub fn init(&self, access: Access) -> QpAttr {
        QpAttr { port_num: Some(self.port_num), ..QpAttr::init(access) }
    }

    /// Returns the path from this port to a peer.
    pub fn path_to(&self, gid: Gid, lid: u16) -> AhAttr {
        // GID tables have fewer than 256 entries; the device refuses a larger index.
        let sgid_index = u8::try_from(self.gid.entry.index).unwrap_or(u8::MAX);
        AhAttr { dgid: gid, sgid_index, dlid: lid, port_num: self.port_num, ..AhAttr::default() }
    }
}

impl fmt::Display for PortChoice {
    /// Writes one line: port, MTU, LID if there is one, and the GID with its reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}, MTU {}, ", self.port_num, self.attr.active_mtu.bytes())?;
        if self.attr.lid != 0 {
            write!(f, "LID {}, ", self.attr.lid)?;
        }
        write!(f, "{}", self.gid)
    }
}

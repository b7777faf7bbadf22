//! Paths to peers, and address handles of these paths for datagrams.

use std::sync::Arc;

use farcall_verbs::{AddressHandle, AhAttr, Error, Gid, Result};

use crate::object::Object;
use crate::pd::Pd;
use farcall_layout as abi;

/// Hop limit of packets: the usual value of IP. A limit of one would keep packets on the local subnet.
const HOP_LIMIT: u8 = 64;

/// Translates a path into the library's structure. Ethernet has no LIDs and needs a global route; on InfiniBand the LID
/// suffices.
pub(crate) fn translate(attr: &AhAttr) -> abi::AhAttr {
    let is_global = attr.dlid == 0 && attr.dgid != Gid::default();
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: attr.dgid.0,
            flow_label: 0,
            sgid_index: attr.sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: attr.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(is_global),
        port_num: attr.port_num,
    }
}

pub(crate) struct Handle {
    raw: Object<abi::Ah>,
    _pd: Arc<Pd>,
}

impl Handle {
    pub(crate) fn create(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Self> {
        let mut raw_attr = translate(attr);
        // SAFETY: `pd` keeps the protection domain alive; the function only reads the attributes, a local variable.
        let raw = unsafe {
            let made = (pd.open.library.create_ah)(pd.as_ptr(), &raw mut raw_attr);
            Object::new(made, "address handle", pd.open.library.destroy_ah, |source| {
                let what = format!(
                    "a path from GID index {} of port {} to {} (LID {}); is there a route, and does it answer ARP?",
                    attr.sgid_index, attr.port_num, attr.dgid, attr.dlid
                );
                Error::os("create_ah", what, source)
            })?
        };
        Ok(Self { raw, _pd: Arc::clone(pd) })
    }
}

impl AddressHandle for Handle {
    fn as_raw(&self) -> *const () {
        self.raw.as_ptr().cast_const().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_has_a_global_route_and_infiniband_a_lid() {
        let gid = Gid::from_ipv4([10, 0, 0, 1].into());
        let ethernet =
            AhAttr { dgid: gid, sgid_index: 3, port_num: 1, traffic_class: 106, ..AhAttr::default() };
        let raw = translate(&ethernet);
        assert_eq!((raw.is_global, raw.grh.dgid, raw.grh.sgid_index, raw.grh.hop_limit), (1, gid.0, 3, 64));
        assert_eq!(raw.grh.traffic_class, 106);
        let raw = translate(&AhAttr { dlid: 4, sl: 2, ..ethernet });
        assert_eq!((raw.is_global, raw.dlid, raw.sl), (0, 4, 2));
    }
}

//! Address handles: the path to a datagram's destination.

use std::sync::Arc;

use farcall_verbs::{AddressHandle, AhAttr, Error, Result};

use crate::roce::{self, Path};
use crate::shm_transport::datagram::Route;
use crate::shm_transport::{ObjectReservation, ShmTransport};
use crate::verbs::require_port;

/// Transport of an address handle, with its path.
#[derive(Clone, Copy)]
pub(crate) enum AddressRoute {
    /// Shared memory, to a process of this host.
    Local(Route),
    /// RoCEv2, to another host.
    Remote(Path),
}

/// An address handle: protection domain, service level and path.
pub(crate) struct SoftAddressHandle {
    pd: u32,
    pub(crate) sl: u8,
    pub(crate) route: AddressRoute,
    _reservation: ObjectReservation,
}

impl SoftAddressHandle {
    pub(crate) fn create(
        shm: &Arc<ShmTransport>,
        pd: u32,
        attr: &AhAttr,
        reservation: ObjectReservation,
    ) -> Result<Self> {
        const OP: &str = "create_ah";
        let process = &shm.core.process;
        require_port(OP, attr.port_num)?;
        if usize::from(attr.sgid_index) >= process.table.len() {
            let what = format!("GID index {}; the port has {}, from 0", attr.sgid_index, process.table.len());
            return Err(Error::invalid(OP, what));
        }
        let route = if process.is_remote_datagram_path(OP, attr.dgid)? {
            let path = Path::to(OP, process, attr)?;
            roce::open(shm)?;
            AddressRoute::Remote(path)
        } else {
            AddressRoute::Local(Route::of(&process.table, attr))
        };
        Ok(Self { pd, sl: attr.sl & 0xF, route, _reservation: reservation })
    }

    /// Returns the handle that a work request's pointer refers to, if it belongs to the domain `pd`.
    ///
    /// # Safety
    /// `raw` must be null or refer to a handle of this provider that exists throughout `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *const (), pd: u32) -> Option<&'a Self> {
        // SAFETY: by the contract of this function `raw` is null or refers to a handle that exists throughout `'a`.
        unsafe { raw.cast::<Self>().as_ref() }.filter(|handle| handle.pd == pd)
    }
}

impl AddressHandle for SoftAddressHandle {
    fn as_raw(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

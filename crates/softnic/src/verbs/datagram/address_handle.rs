//! Address handles: the path to a datagram's destination.

use farcall_verbs::{AddressHandle, AhAttr, Error, Result};

use crate::host::datagram::Route;
use crate::life::Process;
use crate::verbs::require_port;

/// An address handle. Its path can only be to this host; what is left of it is who made it and what it asks for.
pub(crate) struct SoftAddressHandle {
    pd: u32,
    pub(crate) sl: u8,
    pub(crate) route: Route,
}

impl SoftAddressHandle {
    pub(crate) fn create(process: &Process, pd: u32, attr: &AhAttr) -> Result<Self> {
        const OP: &str = "create_ah";
        require_port(OP, attr.port_num)?;
        if usize::from(attr.sgid_index) >= process.table.len() {
            let what = format!("GID index {}; the port has {}, from 0", attr.sgid_index, process.table.len());
            return Err(Error::invalid(OP, what));
        }
        process.require_reachable(OP, attr.dgid)?;
        Ok(Self { pd, sl: attr.sl & 0xF, route: Route::of(&process.table, attr) })
    }

    /// The handle behind a work request's pointer, if it is of the domain `pd`.
    ///
    /// # Safety
    /// `raw` must be null or of a handle of this provider that lives through `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *const (), pd: u32) -> Option<&'a Self> {
        // SAFETY: the caller's promise.
        unsafe { raw.cast::<Self>().as_ref() }.filter(|handle| handle.pd == pd)
    }
}

impl AddressHandle for SoftAddressHandle {
    fn as_raw(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

//! Address handles: the path to a datagram's destination.

use farcall_verbs::{AddressHandle, AhAttr, Error, Result};

use crate::process::Process;

/// An address handle. Its path can only be to this host; what is left of it is who made it and what it asks for.
pub(crate) struct SoftAddressHandle {
    pd: u32,
    sl: u8,
}

impl SoftAddressHandle {
    pub(crate) fn create(process: &Process, pd: u32, attr: &AhAttr) -> Result<Self> {
        const OP: &str = "create_ah";
        if attr.port_num != 1 {
            return Err(Error::invalid(OP, format!("port {}; the device has port 1", attr.port_num)));
        }
        if attr.sgid_index != 0 {
            return Err(Error::invalid(OP, format!("GID index {}; the port has entry 0", attr.sgid_index)));
        }
        process.require_reachable(OP, attr.dgid)?;
        Ok(Self { pd, sl: attr.sl & 0xF })
    }

    /// The handle behind a work request's pointer, if it is of the domain `pd`.
    ///
    /// # Safety
    /// `raw` must be null or of a handle of this provider that lives through `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *const (), pd: u32) -> Option<&'a Self> {
        // SAFETY: the caller's promise.
        unsafe { raw.cast::<Self>().as_ref() }.filter(|handle| handle.pd == pd)
    }

    /// Service level, four bits.
    pub(super) fn sl(&self) -> u8 {
        self.sl
    }
}

impl AddressHandle for SoftAddressHandle {
    fn as_raw(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

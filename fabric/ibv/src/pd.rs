//! A protection domain, shared by all objects created in it.

use std::sync::Arc;

use farcall_layout as abi;
use farcall_verbs::Result;

use crate::fault;
use crate::object::Object;
use crate::open_device::OpenDevice;

/// State that every object of the domain keeps alive.
pub(crate) struct Pd {
    raw: Object<abi::Pd>,
    pub(crate) open: Arc<OpenDevice>,
}

impl Pd {
    pub(crate) fn new(open: &Arc<OpenDevice>) -> Result<Self> {
        // SAFETY: `open` keeps the device open.
        let raw = unsafe {
            let made = (open.library.alloc_pd)(open.as_ptr());
            Object::new(made, "protection domain", open.library.dealloc_pd, |source| {
                fault::create("alloc_pd", format!("a protection domain of {}", open.name), source)
            })?
        };
        Ok(Self { open: Arc::clone(open), raw })
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }
}

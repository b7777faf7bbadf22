//! Memory regions: memory that the provider allocates as sealed segments, so that peers can map it.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use farcall_verbs::{Access, Error, RawMr, Result, Revoked};

use crate::fence;
use crate::process::Process;
use crate::qp::HAZARD_WAIT;
use crate::shared::Segment;

pub(crate) struct Mr {
    process: Arc<Process>,
    segment: Arc<Segment>,
    len_bytes: usize,
    key: u32,
    pd: u32,
    access: Access,
    live: bool,
}

impl Mr {
    pub(crate) fn allocate(
        process: &Arc<Process>,
        pd: u32,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        const OP: &str = "alloc_mr";
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::invalid(OP, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (IBA 10.6.3.1)"));
        }
        if len_bytes == 0 {
            return Err(Error::invalid(OP, "a region has at least one byte"));
        }
        let segment = Arc::new(Segment::create("farcall-mr", len_bytes)?);
        let len_bytes = segment.mapping().len_bytes();
        // Sends and receives name the memory by address; from here on it is reached through that.
        segment.mapping().base().expose_provenance();
        let key = process.regions.insert(segment.clone(), len_bytes, pd, access)?;
        Ok(Self { process: process.clone(), segment, len_bytes, key, pd, access, live: true })
    }

    fn revoke(&mut self) -> Revoked {
        if !std::mem::take(&mut self.live) {
            return Revoked::Now;
        }
        self.process.regions.revoke(self.key);
        fence::heavy();
        // One bound for all: several stopped peers cost no more than one.
        let clear = self.process.wait_out_of_region(self.pd, self.key, Instant::now() + HAZARD_WAIT);
        self.process.regions.release(self.key);
        // A stopped peer goes on in its own mapping of the sealed memory, which nobody else will ever be given.
        if clear { Revoked::Now } else { Revoked::Quarantined }
    }
}

impl RawMr for Mr {
    fn addr(&self) -> *mut u8 {
        self.segment.mapping().base()
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn access(&self) -> Access {
        self.access
    }

    fn dereg(mut self: Box<Self>) -> Revoked {
        self.revoke()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.revoke();
    }
}

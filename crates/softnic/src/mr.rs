//! Memory regions: memory that the provider allocates as sealed segments, so that peers can map it, and memory that the
//! program has already.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::{Access, RawMr, Result, Revoked};

use crate::REMOTE_ACCESS;
use crate::fence;
use crate::in_place;
use crate::process::Process;
use crate::protection;
use crate::qp::HAZARD_WAIT;
use crate::regions::{Backing, Granted};
use crate::shared::Segment;

/// How often a wait for a stopped peer, which may last, is told of.
const TELL_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Mr {
    process: Arc<Process>,
    backing: Backing,
    addr: *mut u8,
    len_bytes: usize,
    key: u32,
    pd: u32,
    access: Access,
    live: bool,
}

// SAFETY: `addr` is given out, never followed here.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    pub(crate) fn allocate(
        process: &Arc<Process>,
        pd: u32,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_registration("alloc_mr", len_bytes)?;
        let segment = Arc::new(Segment::create("farcall-mr", len_bytes)?);
        let (addr, len_bytes) = (segment.mapping().base(), segment.mapping().len_bytes());
        Self::insert(process, Backing::Pool(segment), addr, len_bytes, pd, access)
    }

    /// Moves as much of the program's memory as may be, see [`in_place`].
    ///
    /// # Safety
    /// See [`farcall_verbs::ProtectionDomain::reg_mr`].
    pub(crate) unsafe fn register(
        process: &Arc<Process>,
        pd: u32,
        addr: *mut u8,
        len_bytes: usize,
        access: Access,
        moved_bytes_max: u64,
    ) -> Result<Self> {
        access.check_registration("reg_mr", len_bytes)?;
        protection::require(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE))?;
        let (at, len) = (addr as u64, len_bytes as u64);
        // What nobody writes to or reads from afar is best where it is.
        let window = if access.intersects(Access::LOCAL_WRITE | REMOTE_ACCESS) {
            // SAFETY: the caller's promise.
            unsafe { in_place::share(process, at, len, moved_bytes_max) }
        } else {
            None
        };
        let backing = Backing::Private { addr: at, window };
        let registered = Self::insert(process, backing.clone(), addr, len_bytes, pd, access);
        if registered.is_err() {
            backing.give_back(process);
        }
        registered
    }

    fn insert(
        process: &Arc<Process>,
        backing: Backing,
        addr: *mut u8,
        len_bytes: usize,
        pd: u32,
        access: Access,
    ) -> Result<Self> {
        // Sends and receives name the memory by address; from here on it is reached through that.
        addr.expose_provenance();
        let key = process.regions.insert(backing.clone(), len_bytes, pd, access)?;
        Ok(Self { process: process.clone(), backing, addr, len_bytes, key, pd, access, live: true })
    }

    fn revoke(&mut self) -> Revoked {
        if !std::mem::take(&mut self.live) {
            return Revoked::Now;
        }
        if self.process.is_inherited() {
            // Private copies in a forked child, which no peer knows.
            return Revoked::Now;
        }
        let granted = self.process.regions.revoke(self.key);
        let clear = !(granted.remote || granted.receive) || self.wait_for_peers(granted);
        self.backing.give_back(&self.process);
        self.process.regions.release(self.key);
        // A stopped peer goes on in its own mapping of the sealed memory, which nobody else will ever be given.
        if clear { Revoked::Now } else { Revoked::Quarantined }
    }

    /// Waits until nobody is inside the revoked region: memory of the program without a bound, because it cannot be set
    /// aside. Returns whether nobody is.
    fn wait_for_peers(&self, granted: Granted) -> bool {
        fence::heavy();
        // What we do for peers ends before we are let in.
        self.process.access_turn.wait();
        let out = |deadline| self.process.wait_out_of_region(self.pd, self.key, granted, deadline);
        // One bound for all: several stopped peers cost no more than one.
        let mut clear = out(Instant::now() + HAZARD_WAIT);
        let mut told: Option<Instant> = None;
        while !clear && matches!(self.backing, Backing::Private { .. }) {
            if told.is_none_or(|at| at.elapsed() > TELL_EVERY) {
                told = Some(Instant::now());
                tracing::warn!(
                    "dereg_mr waits: a peer is stopped inside an access to {} bytes at {:p}; let it go on, or end it",
                    self.len_bytes,
                    self.addr
                );
            }
            std::thread::sleep(Duration::from_millis(1));
            clear = out(Instant::now());
        }
        clear
    }
}

impl RawMr for Mr {
    fn addr(&self) -> *mut u8 {
        self.addr
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

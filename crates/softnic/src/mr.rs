//! Memory regions: memory that the provider allocates as sealed segments, so that peers can map it, and memory that the
//! program has already.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farcall_verbs::{Access, Error, RawMr, Result, Revoked};

use crate::REMOTE_ACCESS;
use crate::fence;
use crate::in_place::{self, Window};
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
    live: AtomicBool,
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
        // SAFETY: the caller's promise.
        let window = unsafe { window(process, (addr, len_bytes), access, moved_bytes_max) };
        let backing = Backing::Private { addr: addr as u64, window };
        let registered = Self::insert(process, backing.clone(), addr, len_bytes, pd, access);
        if registered.is_err() {
            backing.give_back(process);
        }
        registered
    }

    /// Ends this registration and begins another under the same key, unless it fails before anything was done.
    ///
    /// # Safety
    /// See [`farcall_verbs::ProtectionDomain::rereg_mr`].
    pub(crate) unsafe fn register_anew(
        &self,
        process: &Arc<Process>,
        pd: u32,
        memory: (*mut u8, usize),
        access: Access,
        moved_bytes_max: u64,
    ) -> Result<Self> {
        const CALL: &str = "rereg_mr";
        let (addr, len_bytes) = memory;
        access.check_registration(CALL, len_bytes)?;
        protection::require(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE))?;
        let Backing::Private { window: before, .. } = &self.backing else {
            return Err(Error::invalid(CALL, "memory of alloc_mr stays as it is"));
        };
        if !Arc::ptr_eq(process, &self.process) || !self.live.swap(false, Ordering::AcqRel) {
            return Err(Error::invalid(CALL, "the region was deregistered, or came by a fork"));
        }
        // Nothing fails from here on.
        self.withdraw();
        let is_same_place = (addr, len_bytes) == (self.addr, self.len_bytes);
        let window = match before {
            Some(moved) if is_same_place => Some(moved.clone()),
            _ => {
                self.backing.give_back(process);
                process.regions.vacate(self.key);
                // SAFETY: the caller's promise.
                unsafe { window(process, memory, access, moved_bytes_max) }
            }
        };
        addr.expose_provenance();
        let backing = Backing::Private { addr: addr as u64, window };
        process.regions.renew(self.key, backing.clone(), len_bytes, pd, access);
        let (process, live) = (process.clone(), AtomicBool::new(true));
        Ok(Self { process, backing, addr, len_bytes, key: self.key, pd, access, live })
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
        let (process, live) = (process.clone(), AtomicBool::new(true));
        Ok(Self { process, backing, addr, len_bytes, key, pd, access, live })
    }

    fn revoke(&self) -> Revoked {
        if !self.live.swap(false, Ordering::AcqRel) {
            return Revoked::Now;
        }
        if self.process.is_inherited() {
            // Private copies in a forked child, which no peer knows.
            return Revoked::Now;
        }
        let clear = self.withdraw();
        self.backing.give_back(&self.process);
        self.process.regions.release(self.key);
        // A stopped peer goes on in its own mapping of the sealed memory, which nobody else will ever be given.
        if clear { Revoked::Now } else { Revoked::Quarantined }
    }

    /// Takes the region from its peers. Returns whether none of them is inside any more.
    fn withdraw(&self) -> bool {
        let granted = self.process.regions.revoke(self.key);
        !(granted.remote || granted.receive) || self.wait_for_peers(granted)
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

/// What of the program's memory peers can map; moves it for that, if it may.
///
/// # Safety
/// See [`farcall_verbs::ProtectionDomain::reg_mr`].
unsafe fn window(
    process: &Process,
    (addr, len_bytes): (*mut u8, usize),
    access: Access,
    moved_bytes_max: u64,
) -> Option<Window> {
    // What nobody writes to or reads from afar is best where it is.
    if !access.intersects(Access::LOCAL_WRITE | REMOTE_ACCESS) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { in_place::share(process, addr as u64, len_bytes as u64, moved_bytes_max) }
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

    fn dereg(self: Box<Self>) -> Revoked {
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

//! Memory regions: memory that the provider allocates as sealed segments, so that peers can map it, and existing memory
//! of the program.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farcall_shm::fence;
use farcall_verbs::{Access, Error, MrAttr, MrMemory, RawMr, Result, Revoked};

use crate::process::regions::{Backing, GrantUse, RegionSpan};
use crate::process::shared_remap::{self, Window};
use crate::process::{Process, REMOTE_ACCESS, protection};
use crate::shm_transport::ShmTransport;
use crate::shm_transport::qp::HAZARD_WAIT;

/// Maximum length of a region in bytes.
pub(crate) const MAX_MR_BYTES: u64 = 1 << 40;

/// Interval between warnings during a wait for a stopped peer, which has no time limit.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Mr {
    shm: Arc<ShmTransport>,
    backing: Backing,
    attr: MrAttr,
    pd: u32,
    live: AtomicBool,
}

impl Mr {
    pub(crate) fn allocate(
        shm: &Arc<ShmTransport>,
        pd: u32,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_registration("alloc_mr", len_bytes, MAX_MR_BYTES)?;
        if len_bytes == 0 {
            return Err(Error::invalid("alloc_mr", "memory of no bytes; allocate at least one"));
        }
        let segment = Arc::new(shm.region_memory.allocate(len_bytes, 0)?);
        let (addr, len_bytes) = (segment.base(), segment.len_bytes());
        Self::insert(shm, Backing::Pool(segment), MrMemory::new(addr, len_bytes), pd, access)
    }

    /// Registers memory of the program, and moves as much of it as permitted to a memfd; see [`shared_remap`].
    ///
    /// # Safety
    /// See [`farcall_verbs::ProtectionDomain::reg_mr`].
    pub(crate) unsafe fn register(
        shm: &Arc<ShmTransport>,
        pd: u32,
        memory: MrMemory,
        access: Access,
        moved_bytes_max: u64,
    ) -> Result<Self> {
        const CALL: &str = "reg_mr";
        let MrMemory { addr, len_bytes, .. } = memory;
        access.check_registration(CALL, len_bytes, MAX_MR_BYTES)?;
        require_no_wrap(CALL, memory)?;
        protection::require(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE))?;
        // SAFETY: the contract of this function is that of `window`.
        let window = unsafe { window(&shm.core.process, (addr, len_bytes), access, moved_bytes_max) };
        let backing = Backing::Private { addr: addr as u64, window };
        let registered = Self::insert(shm, backing.clone(), memory, pd, access);
        if registered.is_err() {
            backing.restore_private(&shm.core.process.service);
        }
        registered
    }

    /// Ends this registration and begins another with the same key. An error leaves this registration unchanged.
    ///
    /// # Safety
    /// See [`farcall_verbs::ProtectionDomain::rereg_mr`].
    pub(crate) unsafe fn reregister(
        &self,
        shm: &Arc<ShmTransport>,
        pd: u32,
        memory: MrMemory,
        access: Access,
        moved_bytes_max: u64,
    ) -> Result<Self> {
        const CALL: &str = "rereg_mr";
        let MrMemory { addr, len_bytes, .. } = memory;
        access.check_registration(CALL, len_bytes, MAX_MR_BYTES)?;
        require_no_wrap(CALL, memory)?;
        protection::require(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE))?;
        let Backing::Private { window: before, .. } = &self.backing else {
            return Err(Error::invalid(CALL, "memory of alloc_mr stays as it is"));
        };
        if !Arc::ptr_eq(shm, &self.shm) || !self.live.swap(false, Ordering::AcqRel) {
            return Err(Error::invalid(CALL, "the region was deregistered, or came by a fork"));
        }
        // All later steps succeed.
        self.withdraw();
        self.quiesce_remote();
        let is_unmoved = (addr, len_bytes) == (self.attr.addr, self.attr.len_bytes);
        let window = match before {
            Some(moved) if is_unmoved => Some(moved.clone()),
            _ => {
                self.backing.restore_private(&shm.core.process.service);
                shm.core.process.regions.drop_backing(self.attr.lkey);
                // SAFETY: the contract of this function is that of `window`.
                unsafe { window(&shm.core.process, (addr, len_bytes), access, moved_bytes_max) }
            }
        };
        let backing = Backing::Private { addr: addr as u64, window };
        let span = RegionSpan { len_bytes, remote_addr: memory.remote_addr };
        shm.core.process.regions.renew(self.attr.lkey, backing.clone(), span, pd, access);
        Ok(Self::new(shm, backing, memory, self.attr.lkey, pd, access))
    }

    fn insert(
        shm: &Arc<ShmTransport>,
        backing: Backing,
        memory: MrMemory,
        pd: u32,
        access: Access,
    ) -> Result<Self> {
        let span = RegionSpan { len_bytes: memory.len_bytes, remote_addr: memory.remote_addr };
        let key = shm.core.process.regions.insert(backing.clone(), span, pd, access)?;
        Ok(Self::new(shm, backing, memory, key, pd, access))
    }

    fn new(
        shm: &Arc<ShmTransport>,
        backing: Backing,
        memory: MrMemory,
        key: u32,
        pd: u32,
        access: Access,
    ) -> Self {
        let MrMemory { addr, len_bytes, remote_addr } = memory;
        // Sends and receives name the memory by its address, and access it through the provenance exposed here.
        addr.expose_provenance();
        let attr = MrAttr { addr, remote_addr, len_bytes, lkey: key, rkey: key, access };
        Self { shm: shm.clone(), backing, attr, pd, live: AtomicBool::new(true) }
    }

    fn revoke(&self) -> Revoked {
        if !self.live.swap(false, Ordering::AcqRel) {
            return Revoked::Now;
        }
        if self.shm.core.process.is_inherited() {
            // The regions of a forked child are private copies, which no peer knows.
            return Revoked::Now;
        }
        let clear = self.withdraw();
        self.quiesce_remote();
        self.backing.restore_private(&self.shm.core.process.service);
        self.shm.core.process.regions.release(self.attr.lkey);
        if !clear {
            // A stopped peer may resume in its own mapping of the sealed memory, which is therefore never reused.
            return Revoked::Quarantined;
        }
        if let Backing::Pool(segment) = &self.backing {
            segment.discard_from(0);
        }
        Revoked::Now
    }

    /// Waits until packets of other hosts that were admitted before have been placed.
    fn quiesce_remote(&self) {
        if let Some(remote) = self.shm.remote.get() {
            remote.quiesce();
        }
    }

    /// Revokes the region. Returns whether no peer accesses it any more.
    fn withdraw(&self) -> bool {
        let granted = self.shm.core.process.regions.revoke(self.attr.lkey);
        self.shm.region_was_revoked(self.attr.lkey);
        !(granted.remote || granted.receive) || self.wait_for_peers(granted)
    }

    /// Waits until no peer accesses the revoked region. The wait for the program's own memory is unbounded, because
    /// that memory cannot be set aside. Returns whether no peer accesses it.
    fn wait_for_peers(&self, granted: GrantUse) -> bool {
        fence::heavy();
        // Waits for an access that the service thread executes for a peer.
        self.shm.core.access_turn.wait();
        let out = |deadline| self.shm.wait_out_of_region(self.pd, self.attr.lkey, granted, deadline);
        // One deadline for all peers: several stopped peers delay the call no longer than one.
        let mut clear = out(Instant::now() + HAZARD_WAIT);
        let mut logged_at: Option<Instant> = None;
        while !clear && matches!(self.backing, Backing::Private { .. }) {
            if logged_at.is_none_or(|at| at.elapsed() > LOG_INTERVAL) {
                logged_at = Some(Instant::now());
                tracing::warn!(
                    "dereg_mr waits: a peer is stopped inside an access to {} bytes at {:p}; continue it (SIGCONT), or end it",
                    self.attr.len_bytes,
                    self.attr.addr
                );
            }
            std::thread::sleep(Duration::from_millis(1));
            clear = out(Instant::now());
        }
        clear
    }
}

/// Checks that the region's addresses, which peers use, do not wrap around.
fn require_no_wrap(operation: &'static str, memory: MrMemory) -> Result<()> {
    let MrMemory { len_bytes, remote_addr, .. } = memory;
    if remote_addr.checked_add(len_bytes as u64).is_some() {
        return Ok(());
    }
    let what = format!(
        "{len_bytes} bytes from address {remote_addr:#x} on reach beyond 2^64; choose a lower address"
    );
    Err(Error::invalid(operation, what))
}

/// Returns the part of the program's memory that peers can map; moves memory for that if permitted.
///
/// # Safety
/// See [`farcall_verbs::ProtectionDomain::reg_mr`].
unsafe fn window(
    process: &Process,
    (addr, len_bytes): (*mut u8, usize),
    access: Access,
    moved_bytes_max: u64,
) -> Option<Window> {
    // Moving has no advantage for memory that is neither written through the device nor accessed by peers.
    if len_bytes == 0 || !access.intersects(Access::LOCAL_WRITE | REMOTE_ACCESS) {
        return None;
    }
    // SAFETY: the contract of this function is that of `share`.
    unsafe {
        let is_registered = |from, to| process.regions.overlaps(from, to);
        shared_remap::share(&process.service, is_registered, (addr as u64, len_bytes as u64), moved_bytes_max)
    }
}

impl RawMr for Mr {
    fn attr(&self) -> &MrAttr {
        &self.attr
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

//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use farcall_verbs::{MrMemory, ProtectionDomain, RawMr};

use crate::errno;
use crate::symbols::{export, unsupported};
use crate::use_count::UseCount;
use crate::{access, context, live, region_names};
use farcall_layout::{Context, Mr, Pd};

#[repr(C)]
pub struct PdObject {
    pd: Pd,
    pub provider: Arc<dyn ProtectionDomain>,
    pub uses: UseCount,
}

#[repr(C)]
struct MrObject {
    mr: Mr,
    provider: Option<Box<dyn RawMr>>,
    is_zero_based: bool,
}

impl MrObject {
    /// Creates the object of a region in the domain `of`, whose C structure is `pd`.
    fn of(pd: *mut Pd, of: &PdObject, provider: Box<dyn RawMr>, is_zero_based: bool) -> Self {
        of.uses.add();
        region_names::note(&*provider);
        let (addr, length) = (provider.addr().cast(), provider.len_bytes());
        let (lkey, rkey) = (provider.lkey(), provider.rkey());
        let mr = Mr { context: of.pd.context, pd, addr, length, handle: lkey, lkey, rkey };
        Self { mr, provider: Some(provider), is_zero_based }
    }

    /// Deregisters the memory. When it returns, no peer accesses the program's memory any more.
    fn release(&mut self) {
        region_names::forget(self.mr.lkey);
        if let Some(provider) = self.provider.take() {
            let _ = provider.dereg();
        }
        // SAFETY: the domain is live, because it cannot be destroyed while its use count is positive.
        unsafe { domain(self.mr.pd) }.uses.remove();
    }
}

/// Changes of `ibv_rereg_mr`.
struct Changes {
    memory: Option<(*mut c_void, usize)>,
    pd: Option<*mut Pd>,
    access: Option<u32>,
}

impl MrObject {
    /// Re-registers the region. If that fails, no request can access the region any more, so that the program cannot
    /// use it by mistake.
    ///
    /// # Safety
    /// The same as for `ibv_rereg_mr` (man page).
    unsafe fn change(&mut self, changes: &Changes) -> Result<(), c_int> {
        let before = self.mr.pd;
        let refused = |why| errno::refused(libc::EINVAL, format_args!("{why}"));
        let provider =
            self.provider.take().ok_or_else(|| refused("an earlier call left the region unusable"))?;
        if changes.memory.is_none() && changes.pd.is_none() && changes.access.is_none() {
            return Err(refused("flags: nothing changes"));
        }
        let is_zero_based =
            changes.access.map_or(self.is_zero_based, |flags| flags & access::ZERO_BASED != 0);
        let access = changes.access.map(access::of_region).transpose()?;
        let pd = changes.pd.unwrap_or(before);
        live::DOMAINS.check(pd)?;
        // SAFETY: the domain is live (checked above).
        if pd.is_null() || unsafe { (*pd).context } != self.mr.context {
            return Err(refused("pd: of the same device only"));
        }
        let is_renamed = changes.memory.is_some() || is_zero_based != self.is_zero_based;
        let memory = is_renamed.then(|| {
            let same = (provider.addr().cast(), provider.len_bytes());
            let (addr, len_bytes) = changes.memory.unwrap_or(same);
            named(MrMemory::new(addr.cast(), len_bytes), is_zero_based)
        });
        // SAFETY: `pd` is live (checked above). `before` is live, because its use count is positive.
        let (of, before) = unsafe { (domain(pd), domain(before)) };
        // SAFETY: contract of this function, which is that of `rereg_mr`: the memory stays mapped until the region is
        // deregistered.
        let made = unsafe { of.provider.rereg_mr(&*provider, memory, access) };
        let made = made.map_err(|error| errno::number(&error))?;
        *self = MrObject::of(pd, of, made, is_zero_based);
        before.uses.remove();
        Ok(())
    }
}

/// # Safety
/// `pd` must have been created by [`ibv_alloc_pd`] and be live.
pub unsafe fn domain<'a>(pd: *mut Pd) -> &'a PdObject {
    // SAFETY: contract of this function: `pd` is live. The C structure is the first field of its `PdObject`
    // (`repr(C)`).
    unsafe { &*pd.cast::<PdObject>() }
}

/// Returns memory with the addresses by which requests refer to it, according to the access flags of its region.
fn named(memory: MrMemory, is_zero_based: bool) -> MrMemory {
    if is_zero_based { memory.named_from(0) } else { memory }
}

/// # Safety
/// `pd` must be live; otherwise the same as for `ibv_reg_mr` (man page).
unsafe fn region(pd: *mut Pd, memory: MrMemory, flags: u32) -> Result<MrObject, c_int> {
    let (access, is_zero_based) = (access::of_region(flags)?, flags & access::ZERO_BASED != 0);
    // SAFETY: contract of this function: `pd` is live.
    let domain = unsafe { domain(pd) };
    // SAFETY: contract of this function, which is that of `reg_mr_at`: the memory stays mapped until the region is
    // deregistered.
    let registered = unsafe { domain.provider.reg_mr_at(named(memory, is_zero_based), access) };
    let provider = registered.map_err(|error| errno::number(&error))?;
    Ok(MrObject::of(pd, domain, provider, is_zero_based))
}

/// # Safety
/// The same as for `ibv_reg_mr` (man page).
unsafe fn register(pd: *mut Pd, memory: MrMemory, access: u32) -> *mut Mr {
    // SAFETY: contract of this function, which is that of `region`; the domain is live (checked before).
    let made = live::DOMAINS.check(pd).and_then(|()| unsafe { region(pd, memory, access) });
    made.map_or_else(errno::null, |made| {
        let made: *mut Mr = Box::into_raw(Box::new(made)).cast();
        // SAFETY: `made` was just created.
        unsafe { live::REGIONS.insert(made) };
        made
    })
}

/// Length in bytes of the kernel's smallest page.
const PAGE_BYTES: u64 = 4096;

/// `IBV_REREG_MR_ERR_INPUT`: the region is unchanged. `..._ERR_CMD`: it must not be used any more.
const ERR_INPUT: c_int = -1;
const ERR_COMMAND: c_int = -4;

/// `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

export! {
    "IBVERBS_1.1" {
        /// `man ibv_alloc_pd`.
        fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
            // SAFETY: contract of `ibv_alloc_pd` (man page): `context` is open.
            match unsafe { context::object(context) }.provider.alloc_pd() {
                Ok(provider) => {
                    let pd = Pd { context, handle: live::new_handle() };
                    let made: *mut Pd =
                        Box::into_raw(Box::new(PdObject { pd, provider, uses: UseCount::default() })).cast();
                    // SAFETY: `made` was just created.
                    unsafe { live::DOMAINS.insert(made) };
                    made
                }
                Err(error) => errno::null(errno::number(&error)),
            }
        }

        /// `man ibv_dealloc_pd`.
        fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
            // SAFETY: the closure runs only if the domain is live.
            let is_free = live::DOMAINS.check(pd).and_then(|()| unsafe { domain(pd) }.uses.check_none());
            if let Err(number) = is_free.and_then(|()| live::DOMAINS.remove(pd)) {
                return number;
            }
            // SAFETY: `ibv_alloc_pd` made it with `Box::into_raw`. No object uses it, and `remove` succeeds only once.
            drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
            0
        }

        /// `man ibv_reg_mr`.
        fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, access: c_int) -> *mut Mr {
            // SAFETY: contract of `ibv_reg_mr` (man page): the memory stays mapped until the region is deregistered.
            unsafe { register(pd, MrMemory::new(addr.cast(), len_bytes), access as u32) }
        }

        /// `man ibv_dereg_mr`.
        fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
            if let Err(number) = live::REGIONS.remove(mr) {
                return number;
            }
            // SAFETY: `register` made it with `Box::into_raw`. `remove` succeeds only once, so no other call frees it.
            unsafe { Box::from_raw(mr.cast::<MrObject>()) }.release();
            0
        }

        /// `man ibv_rereg_mr`: like deregistering and registering, but the keys are preserved.
        fn ibv_rereg_mr(
            mr: *mut Mr, flags: c_int, pd: *mut Pd, addr: *mut c_void, len_bytes: usize, access: c_int,
        ) -> c_int {
            let changes = |bit: c_int| flags & bit != 0;
            let is_unknown = flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0;
            let is_memory_missing = changes(CHANGE_TRANSLATION) && (addr.is_null() || len_bytes == 0);
            let is_access_stray = access != 0 && !changes(CHANGE_ACCESS);
            if is_unknown || is_memory_missing || is_access_stray {
                errno::refused(libc::EINVAL, format_args!("flags {flags:#x}, {len_bytes} bytes, access {access:#x}"));
                return ERR_INPUT;
            }
            let changes = Changes {
                memory: changes(CHANGE_TRANSLATION).then_some((addr, len_bytes)),
                pd: changes(CHANGE_PD).then_some(pd),
                access: changes(CHANGE_ACCESS).then_some(access as u32),
            };
            if let Err(number) = live::REGIONS.check(mr) {
                errno::set(number);
                return ERR_INPUT;
            }
            // SAFETY: the region is live (checked above). Contract of `ibv_rereg_mr` (man page): no other thread uses
            // the region, and the memory stays mapped.
            match unsafe { (*mr.cast::<MrObject>()).change(&changes) } {
                Ok(()) => 0,
                Err(number) => {
                    errno::set(number);
                    ERR_COMMAND
                }
            }
        }
    }
    "IBVERBS_1.7" {
        /// `man ibv_reg_mr_iova`.
        fn ibv_reg_mr_iova(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, iova: u64, access: c_int) -> *mut Mr {
            // SAFETY: contract of `ibv_reg_mr_iova` (man page), which is that of `ibv_reg_mr_iova2`.
            unsafe { ibv_reg_mr_iova2(pd, addr, len_bytes, iova, access as u32) }
        }
    }
    "IBVERBS_1.8" {
        /// Like [`ibv_reg_mr_iova`]; the header's `ibv_reg_mr` calls it if the access flags are not a constant.
        fn ibv_reg_mr_iova2(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, iova: u64, access: u32) -> *mut Mr {
            // Like the kernel, compare the offsets within a page.
            if !(iova ^ addr as u64).is_multiple_of(PAGE_BYTES) {
                let why = format_args!("iova {iova:#x}: its offset in a page is not that of {addr:p}");
                return errno::null(errno::refused(libc::EINVAL, why));
            }
            // SAFETY: contract of `ibv_reg_mr_iova` (man page): the memory stays mapped until the region is
            // deregistered.
            unsafe { register(pd, MrMemory::new(addr.cast(), len_bytes).named_from(iova), access) }
        }
    }
}

// Device memory is not supported.
unsupported! {
    "IBVERBS_1.12" { Null: ibv_reg_dmabuf_mr; }
}

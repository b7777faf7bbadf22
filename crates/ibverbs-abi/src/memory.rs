//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use farcall_verbs::{Access, ProtectionDomain, RawMr};

use crate::context;
use crate::errno;
use crate::symbols::export;
use crate::uses::Uses;
use farcall_ibv::abi::whole::{Context, Mr, Pd};

#[repr(C)]
pub struct PdObject {
    pd: Pd,
    pub provider: Arc<dyn ProtectionDomain>,
    pub uses: Uses,
}

#[repr(C)]
struct MrObject {
    mr: Mr,
    provider: Option<Box<dyn RawMr>>,
}

impl MrObject {
    /// Lets go of the memory. Whatever it promised: memory that is not the provider's is quiet when it returns.
    fn release(&mut self) {
        if let Some(provider) = self.provider.take() {
            let _ = provider.dereg();
        }
        // SAFETY: domains outlive their regions.
        unsafe { domain(self.mr.pd) }.uses.remove();
    }
}

/// # Safety
/// `pd` must come from [`ibv_alloc_pd`].
pub unsafe fn domain<'a>(pd: *mut Pd) -> &'a PdObject {
    // SAFETY: the C structure begins its object.
    unsafe { &*pd.cast::<PdObject>() }
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: what may be ignored.
const OPTIONAL: u32 = 0x3ff0_0000;
/// `IBV_ACCESS_HUGETLB`: a hint about the pages.
const HUGETLB: u32 = 1 << 7;

/// `IBV_ACCESS_MW_BIND`, `..._ZERO_BASED`, `..._ON_DEMAND`: known, and not offered.
const NOT_OFFERED: u32 = 1 << 4 | 1 << 5 | 1 << 6;

fn access_of(flags: u32) -> Result<Access, c_int> {
    let flags = flags & !(OPTIONAL | HUGETLB);
    let access = Access::from_bits(flags & !NOT_OFFERED).ok_or(libc::EINVAL)?;
    if flags & NOT_OFFERED != 0 { Err(libc::EOPNOTSUPP) } else { Ok(access) }
}

/// # Safety
/// See `man ibv_reg_mr`.
unsafe fn region(
    pd: *mut Pd,
    addr: *mut c_void,
    len_bytes: usize,
    access: Access,
) -> Result<MrObject, c_int> {
    // SAFETY: the caller's domain.
    let domain = unsafe { domain(pd) };
    // SAFETY: the caller's promise.
    let registered = unsafe { domain.provider.reg_mr(addr.cast(), len_bytes, access) };
    let provider = registered.map_err(|error| errno::number(&error))?;
    domain.uses.add();
    let (lkey, rkey) = (provider.lkey(), provider.rkey());
    let mr = Mr { context: domain.pd.context, pd, addr, length: len_bytes, handle: lkey, lkey, rkey };
    Ok(MrObject { mr, provider: Some(provider) })
}

/// # Safety
/// See `man ibv_reg_mr`.
unsafe fn register(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, access: u32) -> *mut Mr {
    // SAFETY: the caller's promise.
    match access_of(access).and_then(|access| unsafe { region(pd, addr, len_bytes, access) }) {
        Ok(made) => Box::into_raw(Box::new(made)).cast(),
        Err(number) => errno::null(number),
    }
}

/// `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

export! {
    "IBVERBS_1.1" {
        /// `man ibv_alloc_pd`.
        fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
            // SAFETY: the caller's context.
            match unsafe { context::object(context) }.provider.alloc_pd() {
                Ok(provider) => {
                    let pd = Pd { context, handle: 0 };
                    Box::into_raw(Box::new(PdObject { pd, provider, uses: Uses::default() })).cast()
                }
                Err(error) => errno::null(errno::number(&error)),
            }
        }

        /// `man ibv_dealloc_pd`.
        fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
            // SAFETY: the caller's domain.
            if let Err(number) = unsafe { domain(pd) }.uses.check_none() {
                return number;
            }
            // SAFETY: made by `ibv_alloc_pd`, and nothing uses it.
            drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
            0
        }

        /// `man ibv_reg_mr`.
        fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, access: c_int) -> *mut Mr {
            // SAFETY: the caller's promise.
            unsafe { register(pd, addr, len_bytes, access as u32) }
        }

        /// `man ibv_dereg_mr`.
        fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
            // SAFETY: made by `register`; the program does not use it any more.
            unsafe { Box::from_raw(mr.cast::<MrObject>()) }.release();
            0
        }

        /// `man ibv_rereg_mr`: not offered, because programs expect the keys to stay, as devices have it; register anew.
        /// The region is as it was.
        fn ibv_rereg_mr(
            _mr: *mut Mr, flags: c_int, _pd: *mut Pd, addr: *mut c_void, len_bytes: usize, access: c_int,
        ) -> c_int {
            const ERR_INPUT: c_int = -1;
            let changes = |bit: c_int| flags & bit != 0;
            let is_unknown = flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0;
            let is_memory_missing = changes(CHANGE_TRANSLATION) && (addr.is_null() || len_bytes == 0);
            let is_access_stray = access != 0 && !changes(CHANGE_ACCESS);
            let is_bad = is_unknown || is_memory_missing || is_access_stray;
            errno::set(if is_bad { libc::EINVAL } else { libc::EOPNOTSUPP });
            ERR_INPUT
        }
    }
    "IBVERBS_1.7" {
        /// `man ibv_reg_mr_iova`: at its own address only.
        fn ibv_reg_mr_iova(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, iova: u64, access: c_int) -> *mut Mr {
            // SAFETY: the caller's promise.
            unsafe { ibv_reg_mr_iova2(pd, addr, len_bytes, iova, access as u32) }
        }
    }
    "IBVERBS_1.8" {
        /// As [`ibv_reg_mr_iova`]; what the header's `ibv_reg_mr` calls if the access is no constant.
        fn ibv_reg_mr_iova2(pd: *mut Pd, addr: *mut c_void, len_bytes: usize, iova: u64, access: u32) -> *mut Mr {
            if iova != addr as u64 {
                return errno::null(libc::EOPNOTSUPP);
            }
            // SAFETY: the caller's promise.
            unsafe { register(pd, addr, len_bytes, access) }
        }
    }
    "IBVERBS_1.12" {
        /// `man ibv_reg_dmabuf_mr`: there is no device memory.
        fn ibv_reg_dmabuf_mr(
            _pd: *mut Pd, _offset: u64, _len_bytes: usize, _iova: u64, _fd: c_int, _access: c_int,
        ) -> *mut Mr {
            errno::null(libc::EOPNOTSUPP)
        }
    }
}

//! Access flags (`enum ibv_access_flags`) of regions and queue pairs, for all calls that accept them.

use std::ffi::c_int;

use farcall_verbs::Access;

use crate::errno;

const MW_BIND: u32 = 1 << 4;
pub const ZERO_BASED: u32 = 1 << 5;
const ON_DEMAND: u32 = 1 << 6;
const HUGETLB: u32 = 1 << 7;
const FLUSH: u32 = 1 << 8 | 1 << 9;
/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device ignores if it does not support them, such as relaxed ordering.
const OPTIONAL: u32 = 0x3ff0_0000;

/// Flags without an effect: the hint about pages, the permission to bind windows, and the optional flags.
const IGNORED: u32 = MW_BIND | HUGETLB | OPTIONAL;

/// Converts the access flags of a region; [`ZERO_BASED`] affects only its addresses.
///
/// # Errors
/// Returns `EOPNOTSUPP` for unsupported flags, as the kernel does for devices without the capability, and `EINVAL` for
/// unknown bits.
pub fn of_region(flags: u32) -> Result<Access, c_int> {
    let flags = flags & !IGNORED;
    require_known(flags)?;
    match flags & (ON_DEMAND | FLUSH) {
        0 => Ok(Access::from_bits_truncate(flags)),
        wanted => Err(errno::refused(
            libc::EOPNOTSUPP,
            format_args!("access {wanted:#x}: ON_DEMAND and FLUSH are not offered"),
        )),
    }
}

/// Converts the access flags of a queue pair. The other known flags have no effect, as on the kernel's software RNIC.
///
/// # Errors
/// Returns `EINVAL` for unknown bits.
pub fn of_pair(flags: u32) -> Result<Access, c_int> {
    require_known(flags & !IGNORED)?;
    Ok(Access::from_bits_truncate(flags))
}

fn require_known(flags: u32) -> Result<(), c_int> {
    match flags & !(Access::all().bits() | ZERO_BASED | ON_DEMAND | FLUSH) {
        0 => Ok(()),
        unknown => Err(errno::refused(libc::EINVAL, format_args!("access {unknown:#x}: unknown"))),
    }
}

//! Access flags (`enum ibv_access_flags`) of regions and of queue pairs, for all calls that take them.

use std::ffi::c_int;

use farcall_verbs::Access;

use crate::errno;

const MW_BIND: u32 = 1 << 4;
pub const ZERO_BASED: u32 = 1 << 5;
const ON_DEMAND: u32 = 1 << 6;
const HUGETLB: u32 = 1 << 7;
const FLUSH: u32 = 1 << 8 | 1 << 9;
/// `IBV_ACCESS_OPTIONAL_RANGE`: what a device that does not know it ignores; relaxed ordering is one of them.
const OPTIONAL: u32 = 0x3ff0_0000;

/// What changes nothing here: a hint about pages, the permission to bind windows, and what is optional.
const IGNORED: u32 = MW_BIND | HUGETLB | OPTIONAL;

/// What a region allows; [`ZERO_BASED`] concerns its addresses alone.
///
/// # Errors
/// `EOPNOTSUPP` for what is not offered, as the kernel says of devices without the capability; `EINVAL` for bits that
/// nobody knows.
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

/// What a queue pair lets its peer do. The other known flags change nothing, as on the kernel's software RNIC.
///
/// # Errors
/// `EINVAL` for bits that nobody knows.
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

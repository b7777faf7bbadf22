//! Checks of mappings and page protection for `reg_mr`. They are needed because a peer's access through this process's
//! address space ignores the protection of pages.

use std::io::BufRead;

use farcall_verbs::{Error, Result};
use rustix::io::Errno;

use crate::process::maps::Maps;

const OP: &str = "reg_mr";

/// Returns the error that the kernel reports when it pins memory with such a fault: bad address.
fn fault(what: String) -> Error {
    Error::os(OP, what, Errno::FAULT)
}

/// Checks that all of `addr..addr + len_bytes` is mapped, readable, and writable if `writes`.
///
/// # Errors
/// Returns an error that names the range and the remedy.
pub(crate) fn require(addr: u64, len_bytes: u64, writes: bool) -> Result<()> {
    let end = addr
        .checked_add(len_bytes)
        .ok_or_else(|| Error::invalid(OP, format!("{addr:#x} + {len_bytes} bytes wraps around")))?;
    match Maps::open() {
        Ok(maps) => covers(maps, addr, end, writes),
        // Without `/proc` no peer receives this process's address space either, and the kernel checks every local
        // access itself.
        Err(_) => is_mapped(addr, end),
    }
}

/// Like [`require`], for a list of mappings in address order. Reads no further than necessary.
fn covers(mut maps: Maps<impl BufRead>, addr: u64, end: u64, writes: bool) -> Result<()> {
    let refuse = |from: u64, to: u64, why: &str| {
        let what = format!("{:#x}..{:#x} of {addr:#x}..{end:#x} is {why}", from.max(addr), to.min(end));
        Err(fault(what))
    };
    let mut at = addr;
    while at < end {
        let Some(next) = maps.next() else { return refuse(at, end, "not mapped") };
        let mapped = next.map_err(|e| Error::os(OP, "read /proc/self/maps", e))?;
        if mapped.end <= at {
            continue;
        }
        if mapped.start > at {
            return refuse(at, mapped.start, "not mapped");
        }
        if !mapped.readable {
            return refuse(mapped.start, mapped.end, "not readable");
        }
        if writes && !mapped.writable {
            let why = "read-only: register it without LOCAL_WRITE, REMOTE_WRITE and REMOTE_ATOMIC, or make it \
                       writable first";
            return refuse(mapped.start, mapped.end, why);
        }
        at = mapped.end;
    }
    Ok(())
}

/// Without `/proc`: checks only that the memory is mapped.
fn is_mapped(addr: u64, end: u64) -> Result<()> {
    let page = rustix::param::page_size() as u64;
    let mut resident = vec![0_u8; 4096];
    let mut at = addr - addr % page;
    while at < end {
        let pages = (end - at).div_ceil(page).min(resident.len() as u64);
        // SAFETY: `mincore` writes one byte per page to `resident`, which has at least `pages` bytes, and accesses
        // nothing else.
        let result = unsafe {
            let start = std::ptr::with_exposed_provenance_mut(at as usize);
            libc::mincore(start, (pages * page) as usize, resident.as_mut_ptr())
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            if Errno::from_io_error(&error) == Some(Errno::NOMEM) {
                let range = format!("{at:#x}..{:#x}", at + pages * page);
                return Err(fault(format!("part of {range} is not mapped")));
            }
            return Err(Error::os(OP, "mincore", error));
        }
        at += pages * page;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 00:00 0   /lib/x\n\
3000-5000 rw-p 00000000 00:00 0\n\
5000-6000 ---p 00000000 00:00 0\n\
8000-9000 rw-s 00000000 00:05 17  /memfd:a b (deleted)\n";

    fn check(addr: u64, end: u64, writes: bool) -> Result<()> {
        covers(Maps::of(MAPS.as_bytes()), addr, end, writes)
    }

    #[test]
    fn every_page_counts_and_the_error_names_the_range() {
        assert!(check(0x3001, 0x5000, true).is_ok() && check(0x8000, 0x9000, true).is_ok());
        assert!(check(0x1000, 0x5000, false).is_ok(), "two neighbours");
        let refused = |addr, end, writes| check(addr, end, writes).unwrap_err().to_string();
        assert!(refused(0x2000, 0x4000, true).contains("0x2000..0x3000 of 0x2000..0x4000 is read-only"));
        assert!(refused(0x4000, 0x5800, false).contains("0x5000..0x5800 of 0x4000..0x5800 is not readable"));
        assert!(refused(0x0, 0x1001, false).contains("0x0..0x1000 of 0x0..0x1001 is not mapped"));
        assert!(refused(0x8000, 0xA000, false).contains("0x9000..0xa000 of 0x8000..0xa000 is not mapped"));
    }

    #[test]
    fn our_own_memory_by_both_ways() {
        let words = [0_u64; 64];
        let (addr, len) = (words.as_ptr() as u64, 512);
        require(addr, len, true).unwrap();
        is_mapped(addr, addr + len).unwrap();
        assert!(require(16, 8, false).is_err() && is_mapped(4096, 4104).is_err());
        assert!(require(u64::MAX - 4, 8, false).is_err(), "wraps");
        let text = require as *const () as u64;
        require(text, 16, false).unwrap();
        assert!(require(text, 16, true).is_err(), "code is not writable");
    }
}

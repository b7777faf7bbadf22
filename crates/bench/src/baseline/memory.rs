//! Copying large blocks: the bound of every bandwidth between processes that copies once.

use super::peer::PeerError;
use super::{BaselinePlan, COPY_LEN_BYTES};
use crate::measure::{RoundTrips, ping_pong};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ptr::NonNull;

/// Where the copy lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Anonymous memory of this process.
    Private,
    /// A shared mapping of a memfd, as a peer would have it.
    Shared,
}

/// A mapping of `COPY_LEN_BYTES`, populated.
struct Block {
    start: NonNull<u8>,
}

impl Block {
    fn new(place: Place) -> Result<Self, PeerError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let any = std::ptr::null_mut();
        let address = match place {
            // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
            Place::Private => unsafe {
                mmap_anonymous(any, COPY_LEN_BYTES, access, MapFlags::PRIVATE | MapFlags::POPULATE)
            },
            Place::Shared => {
                let memory = memfd_create("farcall-copy", MemfdFlags::CLOEXEC)
                    .map_err(PeerError::system("memfd_create"))?;
                ftruncate(&memory, COPY_LEN_BYTES as u64).map_err(PeerError::system("ftruncate"))?;
                // SAFETY: as above; the mapping outlives the descriptor.
                unsafe {
                    mmap(any, COPY_LEN_BYTES, access, MapFlags::SHARED | MapFlags::POPULATE, &memory, 0)
                }
            }
        }
        .map_err(PeerError::system("mmap"))?;
        NonNull::new(address.cast()).map(|start| Self { start }).ok_or(PeerError::Ended)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length; no reference outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), COPY_LEN_BYTES) };
    }
}

pub(super) fn copies(plan: &BaselinePlan, place: Place) -> Result<RoundTrips, PeerError> {
    let (from, to) = (Block::new(Place::Private)?, Block::new(place)?);
    ping_pong(plan.warm_up, plan.duration, |number| {
        // SAFETY: both blocks are `COPY_LEN_BYTES` long, distinct, and known to nobody else; the first byte is theirs.
        let seen = unsafe {
            from.start.write(number as u8);
            from.start.copy_to_nonoverlapping(to.start, COPY_LEN_BYTES);
            // Read back through the mapping, so that the copy cannot be left out.
            to.start.read_volatile()
        };
        if seen == number as u8 { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}

//! Payload transfer from and to registered memory. Keys and bounds are checked again for every packet, under the port's
//! lock, for which a deregistration waits.

use farcall_shm::{copy_in_order, copy_plain};
use farcall_verbs::{Access, Sge};
use farcall_wire::Reth;

use crate::process::regions::{RegionTable, RemoteRange};

fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

/// Returns whether the bytes of a list from `offset` on may be accessed.
pub(crate) fn allows(
    regions: &RegionTable,
    pd: u32,
    sges: &[Sge],
    (offset, len_bytes): (u64, u64),
    need: Access,
) -> bool {
    pieces(sges, offset, len_bytes)
        .all(|(sge, addr, len_bytes)| regions.allows(sge.lkey, pd, addr, len_bytes as u32, need))
}

/// Returns the local address of memory specified by a peer, if the access is permitted. An empty range has none.
pub(super) fn locate(regions: &RegionTable, pd: u32, target: &Reth, need: Access) -> Option<u64> {
    let Reth { rkey, addr, len_bytes } = *target;
    regions.locate(&RemoteRange { rkey, addr, len_bytes }, pd, need)
}

/// Returns whether the access to memory specified by a peer is permitted.
pub(super) fn permits(regions: &RegionTable, pd: u32, target: &Reth, need: Access) -> bool {
    target.len_bytes == 0 || locate(regions, pd, target, need).is_some()
}

/// Returns the parts of a list that hold `len_bytes` bytes from `offset` on: element, address and length.
fn pieces(sges: &[Sge], offset: u64, len_bytes: u64) -> impl Iterator<Item = (&Sge, u64, u64)> {
    let (mut skip, mut left) = (offset, len_bytes);
    sges.iter().filter_map(move |sge| {
        let room = u64::from(sge.length);
        let skipped = skip.min(room);
        let taken = left.min(room - skipped);
        (skip, left) = (skip - skipped, left - taken);
        (taken > 0).then_some((sge, sge.addr.wrapping_add(skipped), taken))
    })
}

/// Appends memory to a packet.
///
/// # Safety
/// The memory must be readable.
pub(super) unsafe fn read(bytes: &mut Vec<u8>, addr: u64, len_bytes: usize) {
    bytes.reserve(len_bytes);
    let end = bytes.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: `reserve` provided `len_bytes` spare bytes, which are filled before `set_len`. By the contract of this
    // function the source is readable.
    unsafe {
        copy_plain(end, pointer(addr), len_bytes);
        bytes.set_len(bytes.len() + len_bytes);
    }
}

/// Appends the bytes of a list to a packet.
///
/// # Safety
/// The bytes must be readable.
pub(crate) unsafe fn gather(bytes: &mut Vec<u8>, sges: &[Sge], offset: u64, len_bytes: u64) {
    for (_, addr, len_bytes) in pieces(sges, offset, len_bytes) {
        // SAFETY: by the contract of this function the bytes are readable.
        unsafe { read(bytes, addr, len_bytes as usize) };
    }
}

/// Stores bytes in order, the last byte last.
///
/// # Safety
/// The memory must be writable, and no reference to it may exist.
pub(super) unsafe fn write(addr: u64, bytes: &[u8]) {
    // SAFETY: by the contract of this function the destination is writable and unreferenced; the source is a slice.
    unsafe { copy_in_order(pointer(addr), bytes.as_ptr(), bytes.len()) };
}

/// Stores bytes to a list from `offset` on.
///
/// # Safety
/// The memory must be writable, and no reference to it may exist.
pub(super) unsafe fn scatter(sges: &[Sge], offset: u64, bytes: &[u8]) {
    let mut rest = bytes;
    for (_, addr, len_bytes) in pieces(sges, offset, bytes.len() as u64) {
        let (now, later) = rest.split_at(len_bytes as usize);
        // SAFETY: by the contract of this function the destination is writable and unreferenced.
        unsafe { write(addr, now) };
        rest = later;
    }
}

/// Returns a pointer to the operand of an atomic.
pub(super) fn word(addr: u64) -> *mut u8 {
    pointer(addr)
}

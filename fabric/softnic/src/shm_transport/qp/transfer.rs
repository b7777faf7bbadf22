//! Transfer of payload between scatter/gather lists, rings and regions.

use farcall_shm::ring::Record;
use farcall_shm::{AtomicChange, SharedMem, copy_in_order, copy_out, copy_plain, update_word};
use farcall_verbs::{AtomicTarget, Sge, WrOpcode};

pub(super) fn pointer(sge: &Sge) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(sge.addr as usize)
}

/// Gathers into contiguous memory of a peer (WRITE), final byte last.
///
/// # Safety
/// `dst` must be valid for the total length. The elements must be readable, and no reference to `dst` may exist.
#[inline]
pub(super) unsafe fn gather(mut dst: *mut u8, sges: &[Sge]) {
    for sge in sges {
        let len = sge.length as usize;
        // SAFETY: by the contract of this function the element is readable, and `dst` is valid for the elements that
        // remain.
        unsafe {
            copy_in_order(dst, pointer(sge), len);
            dst = dst.add(len);
        }
    }
}

/// Scatters contiguous memory of a peer (READ), first word first.
///
/// # Safety
/// `src` must be valid for the total length. The elements must be writable and unreferenced.
#[inline]
pub(super) unsafe fn scatter(mut src: *const u8, sges: &[Sge]) {
    for sge in sges {
        let len = sge.length as usize;
        // SAFETY: by the contract of this function the element is writable, and `src` is valid for the elements that
        // remain.
        unsafe {
            copy_out(pointer(sge), src, len);
            src = src.add(len);
        }
    }
}

/// Scatters local bytes into as much of the list as they fill.
///
/// # Safety
/// The elements must be writable and unreferenced.
pub(crate) unsafe fn scatter_bytes(bytes: &[u8], sges: &[Sge]) {
    // SAFETY: by the contract of this function the elements are writable; the source is a slice.
    unsafe { scatter_from(bytes.as_ptr(), bytes.len(), 0, sges) };
}

/// Scatters `len_bytes` at `src` into the list, starting `skip` bytes into it, as far as there is space.
///
/// # Safety
/// `src` must be valid for `len_bytes`. The elements must be writable and unreferenced.
pub(crate) unsafe fn scatter_from(mut src: *const u8, mut len_bytes: usize, mut skip: usize, sges: &[Sge]) {
    for sge in sges {
        let room = sge.length as usize;
        if skip >= room {
            skip -= room;
            continue;
        }
        let len = len_bytes.min(room - skip);
        // SAFETY: by the contract of this function the element is writable and `src` valid; `skip` and `len` are within
        // both.
        unsafe {
            copy_plain(pointer(sge).add(skip), src, len);
            src = src.add(len);
        }
        (len_bytes, skip) = (len_bytes - len, 0);
        if len_bytes == 0 {
            break;
        }
    }
}

/// Appends the bytes of the elements to a local buffer.
///
/// # Safety
/// The elements must be readable and must not change during the call.
pub(crate) unsafe fn gather_to_vec(bytes: &mut Vec<u8>, sges: &[Sge]) {
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        // SAFETY: by the contract of this function the element is readable and does not change.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer(sge), sge.length as usize) });
    }
}

/// Gathers into a record of a ring. `mem` checks its own bounds.
///
/// # Safety
/// The elements must be readable.
#[inline]
pub(crate) unsafe fn gather_to_ring(mem: &SharedMem, mut offset: usize, sges: &[Sge]) {
    for sge in sges {
        let len = sge.length as usize;
        // SAFETY: by the contract of this function the element is readable.
        unsafe { mem.copy_in_raw(offset, pointer(sge), len) };
        offset += len;
    }
}

/// Scatters a record's payload into a receive. Returns `false` and writes nothing if it does not fit.
///
/// # Safety
/// The elements must be writable and unreferenced.
#[inline]
pub(super) unsafe fn scatter_from_ring(mem: &SharedMem, record: &Record, sges: &[Sge]) -> bool {
    let mut left = record.len_bytes as usize;
    if sges.iter().map(|sge| sge.length as usize).sum::<usize>() < left {
        return false;
    }
    let mut offset = record.payload_at;
    for sge in sges {
        let len = left.min(sge.length as usize);
        // SAFETY: by the contract of this function the element is writable; `range` checks the ring's bounds.
        unsafe { copy_plain(pointer(sge), mem.range(offset, len).cast_const(), len) };
        offset += len;
        left -= len;
    }
    true
}

/// Copies the bytes of `from` to the ranges `to`, in order.
///
/// # Safety
/// Every range must be valid, those of `to` must be unreferenced, and `to` must hold at least as many bytes as `from`.
pub(super) unsafe fn gather_to_pieces(from: &[Sge], to: &[(*mut u8, usize)]) {
    let mut pieces = to.iter().copied();
    let mut piece = pieces.next();
    for sge in from {
        let (mut src, mut left) = (pointer(sge).cast_const(), sge.length as usize);
        while left > 0 {
            let Some((dst, room)) = piece else { return };
            let len = left.min(room);
            // SAFETY: by the contract of this function both ranges are valid; `len` is within both.
            unsafe {
                copy_in_order(dst, src, len);
                src = src.add(len);
                piece = Some((dst.add(len), room - len));
            }
            left -= len;
            if room == len {
                piece = pieces.next();
            }
        }
    }
}

/// Changes a word if its local and its remote address are aligned. Returns the previous value.
///
/// # Safety
/// `place` must be valid for 8 bytes to which no reference exists.
#[inline]
pub(super) unsafe fn change_word(place: *mut u8, opcode: WrOpcode, operands: &AtomicTarget) -> Option<u64> {
    let change = if opcode == WrOpcode::ATOMIC_FETCH_AND_ADD {
        AtomicChange::Add(operands.compare_add)
    } else {
        AtomicChange::Swap { if_equal: operands.compare_add, new: operands.swap }
    };
    let is_aligned = place.addr().is_multiple_of(8) && operands.remote_addr.is_multiple_of(8);
    // SAFETY: by the contract of this function `place` is valid and unreferenced; the alignment was checked.
    is_aligned.then(|| unsafe { update_word(place, change) })
}

//! Input and output that threads of the C library, or the kernel, do for the program: of connections by TCP alone.

use std::ffi::{c_int, c_long};

use farcall_stats::PathReason;
use libc::{aiocb, sigevent};

use super::export;
use crate::{descriptors, libc_next, pointers, sock};

/// Returns a connection to TCP before the kernel, or a thread of the C library, uses it.
fn before(fd: c_int) {
    if let Some(sock) = sock::get(fd) {
        descriptors::return_to_kernel(fd, &sock, PathReason::KernelFeature);
    }
}

/// # Safety
/// Null, or a control block of the program.
unsafe fn before_block(block: *const aiocb) {
    // SAFETY: the function's own precondition.
    if let Some(block) = unsafe { block.as_ref() } {
        before(block.aio_fildes);
    }
}

/// # Safety
/// `list` has `count` entries, as `lio_listio` requires.
unsafe fn before_list(list: *const *mut aiocb, count: c_int) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the function's own precondition.
        unsafe { before_block(*list.add(at)) };
    }
}

/// Descriptor in the kernel's control block (`struct iocb`).
const IOCB_FD: usize = 20;

/// Called before control blocks are passed to the kernel (io_submit).
///
/// The kernel fails at the first block that cannot be read.
pub(super) fn before_submit(count: c_long, list: *const *const u8) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        let entry = list.wrapping_add(at);
        if !pointers::can_read(entry, 1) {
            return;
        }
        // SAFETY: `can_read` has found the entry, which the program leaves alone until the call returns.
        let fd = unsafe { entry.read_unaligned() }.wrapping_add(IOCB_FD).cast::<c_int>();
        if !pointers::can_read(fd, 1) {
            return;
        }
        // SAFETY: `can_read` has found the number, which any bits are a value of.
        before(unsafe { fd.read_unaligned() });
    }
}

export! {
    fn aio_read(block: *mut aiocb) -> c_int {
        // SAFETY: the caller's block, which `aio_read` requires.
        unsafe {
            before_block(block);
            libc_next::aio_read(block)
        }
    }

    fn aio_write(block: *mut aiocb) -> c_int {
        // SAFETY: the caller's block, which `aio_write` requires.
        unsafe {
            before_block(block);
            libc_next::aio_write(block)
        }
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        // SAFETY: the caller's list, which `lio_listio` requires.
        unsafe {
            before_list(list, count);
            libc_next::lio_listio(mode, list, count, event)
        }
    }

    // In front of the function of libaio.
    fn io_submit(context: usize, count: c_long, list: *const *const u8) -> c_int {
        // SAFETY: the caller's list, which `io_submit` requires.
        unsafe {
            before_submit(count, list);
            libc_next::io_submit(context, count, list)
        }
    }
}

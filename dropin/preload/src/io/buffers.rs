//! Buffers of a program's call.

use libc::{iovec, msghdr};

use crate::pointers::{self, Access};

/// Returns the total length of buffers in bytes.
pub(super) fn len_bytes(buffers: &[iovec]) -> usize {
    buffers.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.iov_len))
}

/// Returns whether some of `max_bytes` from a byte on cannot be accessed: the kernel returns EFAULT.
pub(super) fn is_inaccessible(buffers: &[iovec], from_byte: usize, max_bytes: usize, access: Access) -> bool {
    let (mut skip, mut left_bytes) = (from_byte, max_bytes);
    buffers.iter().any(|buffer| {
        let skipped = skip.min(buffer.iov_len);
        skip -= skipped;
        let len_bytes = (buffer.iov_len - skipped).min(left_bytes);
        left_bytes -= len_bytes;
        !pointers::can_access(buffer.iov_base.wrapping_byte_add(skipped), len_bytes, access)
    })
}

/// Returns the rest of buffers from byte `from_byte` on.
pub(super) fn remaining(buffers: &[iovec], from_byte: usize) -> Vec<iovec> {
    let mut skip = from_byte;
    let rest = buffers.iter().map(|buffer| {
        let skipped = skip.min(buffer.iov_len);
        skip -= skipped;
        // SAFETY: inside of the buffer.
        let iov_base = unsafe { buffer.iov_base.byte_add(skipped) };
        iovec { iov_base, iov_len: buffer.iov_len - skipped }
    });
    rest.collect()
}

/// Returns a message with only these buffers, which must outlive it.
pub(super) fn message_of(buffers: &mut [iovec]) -> msghdr {
    // SAFETY: zeros are a message without buffers, address and control data.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers.as_mut_ptr(), buffers.len() as _);
    message
}

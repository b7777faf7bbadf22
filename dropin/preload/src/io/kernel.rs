//! Transfers by TCP: those of unpaired connections, and those before and after a ring.

use std::ffi::c_int;

use libc::{iovec, ssize_t};

use super::buffers::{message_of, remaining};
use crate::sock::{Direction, Sock};
use crate::{errno, libc_next, rendezvous};

/// Result of receiving without waiting.
#[derive(Clone, Copy)]
pub(super) enum Received {
    /// Number of bytes; 0 if the stream has ended, or none were requested.
    Bytes(usize),
    Error(c_int),
    /// No bytes yet.
    WouldBlock,
    /// The kernel has all later bytes, and must execute the call.
    PassToKernel,
}

/// Calls the kernel's sendmsg with what is left of buffers.
pub(super) fn send_rest(fd: c_int, buffers: &[iovec], from_byte: usize, flags: c_int) -> ssize_t {
    let mut rest = remaining(buffers, from_byte);
    let message = message_of(&mut rest);
    // SAFETY: the program's buffers.
    unsafe { libc_next::sendmsg(fd, &raw const message, flags) }
}

/// Sends by TCP.
///
/// # Safety
/// The contract of [`send`].
pub(super) unsafe fn kernel_send(fd: c_int, buffers: &[iovec], flags: c_int) -> ssize_t {
    match buffers {
        // SAFETY: by this function's contract, the buffers are the program's and can be read until the call returns;
        // the kernel reads no more than this one, and checks it.
        [buffer] => unsafe { libc_next::send(fd, buffer.iov_base, buffer.iov_len, flags) },
        _ => send_rest(fd, buffers, 0, flags),
    }
}

/// Receives by TCP.
///
/// # Safety
/// The contract of [`receive`].
pub(super) unsafe fn kernel_receive(fd: c_int, buffers: &[iovec], flags: c_int) -> ssize_t {
    match buffers {
        // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns;
        // the kernel writes no more than this one, and checks it.
        [buffer] => unsafe { libc_next::recv(fd, buffer.iov_base, buffer.iov_len, flags) },
        _ => {
            let mut rest = remaining(buffers, 0);
            let mut message = message_of(&mut rest);
            // SAFETY: the program's buffers.
            unsafe { libc_next::recvmsg(fd, &raw mut message, flags) }
        }
    }
}

/// Called after a transfer by TCP of an unpaired connection: its ends may pair now.
pub(super) fn count_transfer(fd: c_int, sock: &Sock, direction: Direction, transferred: ssize_t) {
    if let Ok(len_bytes) = usize::try_from(transferred)
        && len_bytes > 0
        && sock.usage.count(direction, len_bytes)
    {
        rendezvous::advance(fd, sock);
    }
}

/// A receive by TCP, by the call that the program made, of an unpaired connection; `None` if the connection is paired,
/// or stays on TCP. `call` must leave no other trace in this process.
pub fn receive_before_pairing(
    fd: c_int,
    sock: &Sock,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    let stage = sock.settled_stage();
    if !stage.is_unpaired() {
        return None;
    }
    // A thread that pairs the ends must know how many bytes were read.
    let kernel_call = sock.enter_kernel(Direction::Receive);
    // The other thread may have switched without success; each stage before the pairing is accepted.
    if !sock.stage().is_unpaired() {
        drop(kernel_call);
        return receive_before_pairing(fd, sock, flags, call);
    }
    let received = call();
    drop(kernel_call);
    if flags & libc::MSG_PEEK == 0 {
        count_transfer(fd, sock, Direction::Receive, received);
    }
    Some(received)
}

/// Returns the result of a call that receives without waiting.
fn result_of(received: ssize_t) -> Received {
    match received {
        0.. => Received::Bytes(received as usize),
        _ => match errno::get() {
            libc::EAGAIN => Received::WouldBlock,
            number => Received::Error(number),
        },
    }
}

/// Receives at most `max_bytes` of the bytes that the kernel has.
///
/// # Safety
/// The contract of [`receive`].
pub(super) unsafe fn receive_from_kernel(
    fd: c_int,
    buffers: &[iovec],
    from_byte: usize,
    max_bytes: usize,
    flags: c_int,
) -> Received {
    let mut rest = remaining(buffers, from_byte);
    let mut left_bytes = max_bytes;
    for buffer in &mut rest {
        buffer.iov_len = buffer.iov_len.min(left_bytes);
        left_bytes -= buffer.iov_len;
    }
    let mut message = message_of(&mut rest);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    // SAFETY: the program's buffers.
    result_of(unsafe { libc_next::recvmsg(fd, &raw mut message, flags) })
}

/// Queries the kernel for bytes to receive, without consuming them.
pub(super) fn peek(fd: c_int) -> Received {
    let mut byte = 0_u8;
    // SAFETY: one byte of this function.
    result_of(unsafe { libc_next::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) })
}

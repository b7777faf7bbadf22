//! Transfers by TCP: of connections whose ends have not met, and before and after a ring.

use std::ffi::c_int;

use libc::{iovec, ssize_t};

use super::buffers::{message_of, rest_of};
use crate::sock::{Direction, Sock};
use crate::{errno, meet, real};

/// Result of receiving without waiting.
#[derive(Clone, Copy)]
pub(super) enum Got {
    /// Number of bytes; 0 if the stream has ended, or none were requested.
    Bytes(usize),
    Error(c_int),
    /// Nothing yet.
    Nothing,
    /// The kernel has all the rest, and waits better than we can.
    Kernel,
}

/// Calls the kernel's sendmsg with what is left of buffers.
pub(super) fn send_rest(fd: c_int, buffers: &[iovec], from_byte: usize, flags: c_int) -> ssize_t {
    let mut rest = rest_of(buffers, from_byte);
    let message = message_of(&mut rest);
    // SAFETY: the program's buffers.
    unsafe { real::sendmsg(fd, &raw const message, flags) }
}

/// Sends by TCP.
///
/// # Safety
/// As [`send`].
pub(super) unsafe fn kernel_send(fd: c_int, buffers: &[iovec], flags: c_int) -> ssize_t {
    match buffers {
        // SAFETY: by this function's contract, the buffers are the program's and can be read until the call returns;
        // the kernel reads no more than this one, and checks it.
        [buffer] => unsafe { real::send(fd, buffer.iov_base, buffer.iov_len, flags) },
        _ => send_rest(fd, buffers, 0, flags),
    }
}

/// Receives by TCP.
///
/// # Safety
/// As [`receive`].
pub(super) unsafe fn kernel_receive(fd: c_int, buffers: &[iovec], flags: c_int) -> ssize_t {
    match buffers {
        // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns;
        // the kernel writes no more than this one, and checks it.
        [buffer] => unsafe { real::recv(fd, buffer.iov_base, buffer.iov_len, flags) },
        _ => {
            let mut rest = rest_of(buffers, 0);
            let mut message = message_of(&mut rest);
            // SAFETY: the program's buffers.
            unsafe { real::recvmsg(fd, &raw mut message, flags) }
        }
    }
}

/// Called after a transfer by TCP of a connection whose ends have not met: they may meet now.
pub(super) fn used(fd: c_int, sock: &Sock, direction: Direction, transferred: ssize_t) {
    if let Ok(len_bytes) = usize::try_from(transferred)
        && len_bytes > 0
        && sock.uses.count(direction, len_bytes)
    {
        meet::advance(fd, sock);
    }
}

/// A receive by TCP, by the call that the program made, of a connection whose ends have not met; `None` if they have,
/// or if it stays on TCP. `call` must leave no other trace in this process.
pub fn receive_before_meeting(
    fd: c_int,
    sock: &Sock,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    let stage = sock.settled_stage();
    if !stage.is_unmet() {
        return None;
    }
    // A thread that meets the peer must know how many bytes were read.
    let inside = sock.enter_kernel(Direction::Receive);
    // It may have ended its turn without success, or this is another one: any stage before the meeting will do.
    if !sock.stage().is_unmet() {
        drop(inside);
        return receive_before_meeting(fd, sock, flags, call);
    }
    let received = call();
    drop(inside);
    if flags & libc::MSG_PEEK == 0 {
        used(fd, sock, Direction::Receive, received);
    }
    Some(received)
}

/// At most `max_bytes` of what the kernel has.
///
/// # Safety
/// As [`receive`].
pub(super) unsafe fn from_kernel(
    fd: c_int,
    buffers: &[iovec],
    from_byte: usize,
    max_bytes: usize,
    flags: c_int,
) -> Got {
    let mut rest = rest_of(buffers, from_byte);
    let mut left_bytes = max_bytes;
    for buffer in &mut rest {
        buffer.iov_len = buffer.iov_len.min(left_bytes);
        left_bytes -= buffer.iov_len;
    }
    let mut message = message_of(&mut rest);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    // SAFETY: the program's buffers.
    let got = unsafe { real::recvmsg(fd, &raw mut message, flags) };
    match got {
        0.. => Got::Bytes(got as usize),
        _ => match errno::get() {
            libc::EAGAIN => Got::Nothing,
            number => Got::Error(number),
        },
    }
}

/// Queries the kernel for bytes to receive, without consuming them.
pub(super) fn peek(fd: c_int) -> Got {
    let mut byte = 0_u8;
    // SAFETY: one byte of ours.
    let got = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    match got {
        0.. => Got::Bytes(got as usize),
        _ => match errno::get() {
            libc::EAGAIN => Got::Nothing,
            number => Got::Error(number),
        },
    }
}

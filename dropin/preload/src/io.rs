//! Sending and receiving on a connection: through the rings where they have begun and not ended, by TCP otherwise.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use farcall_stats::Why;
use libc::{iovec, msghdr, pollfd, ssize_t};

use crate::ring::{Look, Pull};
use crate::sock::{InKernel, Link, MAPPED, Sock, Stage};
use crate::{clock, errno, meet, own_fds, poll, real, tcp};

/// What a call came to.
pub enum Way {
    /// The kernel is to be asked, by the call that the program made.
    Kernel,
    /// This many bytes; -1: `errno` is set.
    Done(ssize_t),
}

const FAILED: Way = Way::Done(-1);

fn fail(number: c_int) -> Way {
    errno::set(number);
    FAILED
}

/// All bytes of buffers.
fn len_bytes(buffers: &[iovec]) -> usize {
    buffers.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.iov_len))
}

/// Whether a call on it does not wait.
fn is_nonblocking(fd: c_int, sock: &Sock, flags: c_int) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return true;
    }
    let known = sock.nonblocking.load(Relaxed);
    if known != 0 {
        return known == 2;
    }
    // SAFETY: no memory is involved.
    let status = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let is_set = status >= 0 && status & libc::O_NONBLOCK != 0;
    sock.nonblocking.store(if is_set { 2 } else { 1 }, Relaxed);
    is_set
}

/// SO_RCVTIMEO or SO_SNDTIMEO: `None` waits without end.
fn timeout(fd: c_int, option: c_int) -> Option<Duration> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, a timeval.
    let asked =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len) };
    let timeout = Duration::from_secs(value.tv_sec as u64) + Duration::from_micros(value.tv_usec as u64);
    (asked == 0 && !timeout.is_zero()).then_some(timeout)
}

/// A wait of one call.
struct Wait {
    fd: c_int,
    events: i16,
    /// `None`: without end.
    until_ns: Option<u64>,
    can_time_out: bool,
}

impl Wait {
    fn new(fd: c_int, events: i16, option: c_int) -> Self {
        let timeout = timeout(fd, option);
        let until_ns = timeout.map(|timeout| clock::now_ns() + timeout.as_nanos() as u64);
        Self { fd, events, until_ns, can_time_out: timeout.is_some() }
    }

    /// Waits; the error number that the call ends with, if it ends.
    fn wait(&self) -> Result<(), c_int> {
        let mut fds = [pollfd { fd: self.fd, events: self.events, revents: 0 }];
        loop {
            match poll::poll(&mut fds, self.until_ns, std::ptr::null()) {
                0 => return Err(libc::EAGAIN),
                -1 if errno::get() == libc::EINTR && !self.can_time_out && poll::all_handlers_restart() => {}
                -1 => return Err(errno::get()),
                _ => return Ok(()),
            }
        }
    }
}

/// What is left of buffers from a byte on.
fn rest_of(buffers: &[iovec], from_byte: usize) -> Vec<iovec> {
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

/// A message of nothing but these buffers, which outlive its use.
fn message_of(buffers: &mut [iovec]) -> msghdr {
    // SAFETY: zeros are a message without anything.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers.as_mut_ptr(), buffers.len() as _);
    message
}

/// Calls the kernel's sendmsg with what is left of buffers.
fn send_rest(fd: c_int, buffers: &[iovec], from_byte: usize, flags: c_int) -> ssize_t {
    let mut rest = rest_of(buffers, from_byte);
    let message = message_of(&mut rest);
    // SAFETY: the program's buffers.
    unsafe { real::sendmsg(fd, &raw const message, flags) }
}

/// Flags of a send that the rings know.
const SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;

/// Sends.
///
/// # Safety
/// The buffers are the program's, and can be read.
pub unsafe fn send(fd: c_int, sock: &Sock, buffers: &[iovec], flags: c_int) -> Way {
    if flags & !SEND_FLAGS != 0 {
        sock.demote(Why::KernelFeature);
    }
    if sock.stage() == Stage::Meeting {
        meet::look(fd, sock);
    }
    let Some(link) = sock.link() else {
        if sock.stage() == Stage::Tcp {
            return Way::Kernel;
        }
        // A peer could be met meanwhile; then the rings wait until this thread is done.
        let _inside = InKernel::new(&sock.kernel_senders);
        if sock.stage() != Stage::Met {
            return Way::Done(send_rest(fd, buffers, 0, flags));
        }
        drop(_inside);
        // SAFETY: the caller's promise.
        return unsafe { send(fd, sock, buffers, flags) };
    };
    if sock.is_inherited() {
        sock.demote(Why::Forked);
    }
    // SAFETY: the caller's promise.
    unsafe { send_in_ring(fd, sock, link, buffers, flags) }
}

/// Whether the ring to the peer is in use, or can be from now on: the peer maps it, and the peer's kernel has all that was
/// sent before.
fn begins_ring(fd: c_int, sock: &Sock, link: &Link) -> bool {
    if link.out.has_begun() {
        return true;
    }
    let is_mapped = link.own_end == meet::AT_CONNECTED_END || link.words.load(MAPPED, SeqCst) != 0;
    // In this order: who has left the kernel is counted there.
    if !is_mapped || link.out.look().is_closed || sock.kernel_senders.load(SeqCst) != 0 {
        return false;
    }
    let Some(after_bytes) = tcp::sent_and_acknowledged_bytes(fd) else { return false };
    link.out.begin(after_bytes);
    true
}

/// # Safety
/// As [`send`].
unsafe fn send_in_ring(fd: c_int, sock: &Sock, link: &Link, buffers: &[iovec], flags: c_int) -> Way {
    let (all, mut done) = (len_bytes(buffers), 0);
    let mut wait = None;
    loop {
        let Some(held) = link.out.lock_sender() else { return fail(libc::EAGAIN) };
        if !begins_ring(fd, sock, link) {
            let inside = InKernel::new(&sock.kernel_senders);
            drop(held);
            let sent = send_rest(fd, buffers, done, flags);
            drop(inside);
            return Way::Done(if sent < 0 && done > 0 { done as ssize_t } else { sent + done as ssize_t });
        }
        // SAFETY: the lock is held; the caller's promise.
        let pushed = unsafe { link.out.push(buffers, done) };
        if pushed.is_some_and(|pushed| link.out.lengthen(all - done - pushed))
            && let Some(shown) = sock.shown()
        {
            shown.ring_bytes.set(link.out.len_bytes() as u64);
        }
        drop(held);
        let Some(pushed) = pushed else {
            let sent = send_rest(fd, buffers, done, flags);
            return Way::Done(if sent < 0 {
                if done > 0 { done as ssize_t } else { sent }
            } else {
                sent + done as ssize_t
            });
        };
        done += pushed;
        if pushed > 0 {
            if let Some(shown) = sock.shown() {
                shown.sent_bytes.add(pushed as u64);
            }
            if link.out.takes_data_wake() {
                own_fds::ring(link.peer_door);
            }
        }
        if done == all {
            return Way::Done(done as ssize_t);
        }
        sock.full_count.fetch_add(1, SeqCst);
        // Another thread may sleep, for which there was room when it looked.
        link.out.arm_room();
        if link.out.has_room() {
            continue;
        }
        let ended = if is_nonblocking(fd, sock, flags) {
            Some(libc::EAGAIN)
        } else {
            wait.get_or_insert_with(|| Wait::new(fd, libc::POLLOUT, libc::SO_SNDTIMEO)).wait().err()
        };
        if let Some(number) = ended {
            return if done > 0 { Way::Done(done as ssize_t) } else { fail(number) };
        }
    }
}

/// Flags of a receive that the rings know.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives.
///
/// # Safety
/// The buffers are the program's, and can be written.
pub unsafe fn receive(fd: c_int, sock: &Sock, buffers: &[iovec], flags: c_int) -> Way {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Way::Kernel;
    }
    if flags & !RECEIVE_FLAGS != 0 {
        sock.demote(Why::KernelFeature);
        if flags & libc::MSG_OOB != 0 {
            return Way::Kernel;
        }
    }
    if sock.stage() == Stage::Tcp {
        return Way::Kernel;
    }
    if sock.is_inherited() {
        sock.demote(Why::Forked);
    }
    let wanted = len_bytes(buffers);
    if wanted == 0 && sock.link().is_some() {
        return receive_nothing(fd, sock, flags);
    }
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let (mut done, mut wait) = (0, None);
    loop {
        // SAFETY: the caller's promise.
        let got = unsafe { receive_now(fd, sock, buffers, done, flags) };
        match got {
            Got::Bytes(len) if len > 0 => {
                done += len;
                if done >= wanted || !waits_for_all {
                    return Way::Done(done as ssize_t);
                }
            }
            Got::Bytes(_) => return Way::Done(done as ssize_t),
            Got::Error(_) if done > 0 => return Way::Done(done as ssize_t),
            Got::Error(number) => return fail(number),
            Got::Kernel if done == 0 => return Way::Kernel,
            Got::Kernel | Got::Nothing => {}
            Got::Again => continue,
        }
        if matches!(got, Got::Nothing | Got::Kernel) {
            let ended = if is_nonblocking(fd, sock, flags) {
                Some(libc::EAGAIN)
            } else {
                wait.get_or_insert_with(|| Wait::new(fd, libc::POLLIN, libc::SO_RCVTIMEO)).wait().err()
            };
            if let Some(number) = ended {
                return if done > 0 { Way::Done(done as ssize_t) } else { fail(number) };
            }
        }
    }
}

/// No bytes are asked for: TCP waits until there are some all the same.
fn receive_nothing(fd: c_int, sock: &Sock, flags: c_int) -> Way {
    let is_ready = |fds: &mut [pollfd]| poll::poll(fds, Some(0), std::ptr::null()) > 0;
    if is_ready(&mut [pollfd { fd, events: libc::POLLIN, revents: 0 }]) {
        return Way::Done(0);
    }
    if is_nonblocking(fd, sock, flags) {
        return fail(libc::EAGAIN);
    }
    Wait::new(fd, libc::POLLIN, libc::SO_RCVTIMEO).wait().map_or_else(fail, |()| Way::Done(0))
}

/// What there is to receive now.
#[derive(Clone, Copy)]
enum Got {
    /// So many; 0: no more will come, or none were asked for.
    Bytes(usize),
    Error(c_int),
    /// Nothing yet.
    Nothing,
    /// The connection has met its peer meanwhile.
    Again,
    /// The kernel has all the rest, and waits better than we can.
    Kernel,
}

/// # Safety
/// As [`receive`].
unsafe fn receive_now(fd: c_int, sock: &Sock, buffers: &[iovec], from_byte: usize, flags: c_int) -> Got {
    if sock.stage() == Stage::Meeting {
        meet::look(fd, sock);
    }
    if let Some(link) = sock.link() {
        // SAFETY: the caller's promise.
        return unsafe { receive_met(fd, sock, link, buffers, from_byte, flags) };
    }
    let stage = sock.settled_stage();
    if stage == Stage::Turning {
        // This is a signal handler, which interrupted who meets the peer.
        return Got::Error(libc::EAGAIN);
    }
    if stage == Stage::Tcp {
        if from_byte == 0 {
            return Got::Kernel;
        }
        // SAFETY: the caller's promise.
        return unsafe { from_kernel(fd, buffers, from_byte, usize::MAX, flags) };
    }
    // Who meets the peer meanwhile must know how many bytes were read.
    let inside = InKernel::new(&sock.kernel_receivers);
    if sock.stage() != stage {
        return Got::Again;
    }
    // SAFETY: the caller's promise.
    let got = unsafe { from_kernel(fd, buffers, from_byte, usize::MAX, flags) };
    drop(inside);
    if stage == Stage::Accepted && matches!(got, Got::Bytes(len) if len > 0) {
        meet::seek(fd, sock);
    }
    got
}

/// At most `max_bytes` of what the kernel has.
///
/// # Safety
/// As [`receive`].
unsafe fn from_kernel(fd: c_int, buffers: &[iovec], from_byte: usize, max_bytes: usize, flags: c_int) -> Got {
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

/// So long an answer of the kernel's about an empty receive queue holds, for who asks again and again.
const LOOK_PERIOD_NS: u64 = 20_000;
/// So often a receive looks again.
const LOOKS_MAX: u32 = 4;

/// How many bytes that came by TCP before the ring are to be read first. The receiver's lock is held.
fn bytes_before_ring(fd: c_int, link: &Link) -> u64 {
    if link.inn.is_drained() {
        return 0;
    }
    if !link.inn.has_begun() {
        let waiting_bytes = tcp::unread_bytes(fd);
        if link.inn.look().is_closed {
            link.inn.set_drained();
            return 0;
        }
        // Looked at afterwards: if the ring has not begun, all that waits came before it.
        if !link.inn.has_begun() {
            return waiting_bytes;
        }
    }
    // The peer has seen that our kernel has them.
    let left_bytes = link.inn.left_by_tcp_bytes();
    if left_bytes == 0 {
        link.inn.set_drained();
    }
    left_bytes
}

/// # Safety
/// As [`receive`].
unsafe fn receive_before_ring(
    fd: c_int,
    link: &Link,
    buffers: &[iovec],
    from_byte: usize,
    max_bytes: u64,
    flags: c_int,
) -> Got {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    let got = unsafe { from_kernel(fd, buffers, from_byte, max_bytes, flags) };
    if let Got::Bytes(len) = got {
        meet::acknowledge(fd);
        if flags & libc::MSG_PEEK == 0 {
            link.inn.add_read_by_tcp(len as u64);
        }
    }
    got
}

/// Receives all that is there, by TCP before the ring, from the ring, and by TCP after it: programs take a short
/// read for an empty socket.
///
/// # Safety
/// As [`receive`].
unsafe fn receive_met(
    fd: c_int,
    sock: &Sock,
    link: &Link,
    buffers: &[iovec],
    from_byte: usize,
    flags: c_int,
) -> Got {
    let Some(_held) = link.inn.lock_receiver() else { return Got::Error(libc::EAGAIN) };
    let how = match flags {
        _ if flags & libc::MSG_PEEK != 0 => Pull::Peek,
        _ if flags & libc::MSG_TRUNC != 0 => Pull::Forget,
        _ => Pull::Take,
    };
    // What is there may change between two looks.
    for _ in 0..LOOKS_MAX {
        let before_bytes = bytes_before_ring(fd, link);
        let mut end_byte = from_byte;
        if before_bytes > 0 {
            // SAFETY: the caller's promise.
            match unsafe { receive_before_ring(fd, link, buffers, from_byte, before_bytes, flags) } {
                Got::Bytes(len) if len as u64 == before_bytes => end_byte += len,
                other => return other,
            }
        }
        let passed_bytes = if how == Pull::Peek { before_bytes } else { 0 };
        let len = if link.inn.is_reached(passed_bytes) {
            // SAFETY: the lock is held; the caller's promise.
            unsafe { link.inn.pull(buffers, end_byte, how) }
        } else {
            0
        };
        if len > 0 {
            received(sock, link, len, how);
        }
        end_byte += len;
        if end_byte > from_byte {
            let Look { unread_bytes, is_closed } = link.inn.look();
            let left_bytes = if how == Pull::Peek { len as u64 } else { 0 };
            if is_closed && unread_bytes == left_bytes && passed_bytes == 0 && link.inn.is_reached(0) {
                // SAFETY: the caller's promise.
                end_byte += unsafe { what_follows(fd, sock, buffers, end_byte, flags) };
            }
            return Got::Bytes(end_byte - from_byte);
        }
        let look = link.inn.look();
        if look.unread_bytes > 0 {
            continue;
        }
        if look.is_closed && link.inn.is_drained() {
            return after_ring(fd, sock, link, buffers, from_byte, flags);
        }
        let now_ns = clock::now_ns();
        if is_nonblocking(fd, sock, flags)
            && now_ns.wrapping_sub(sock.looked_ns.load(Relaxed)) < LOOK_PERIOD_NS
        {
            return Got::Nothing;
        }
        sock.looked_ns.store(now_ns, Relaxed);
        // The kernel knows whether the peer has ended. What it may have sent just before is in the ring: look again.
        let peeked = peek(fd);
        if let Got::Error(number) = peeked {
            // The kernel tells an error once.
            sock.pending_error.store(number, SeqCst);
        }
        match peeked {
            Got::Nothing => return Got::Nothing,
            _ if link.inn.look().unread_bytes > 0 => {}
            Got::Bytes(0) | Got::Error(_) => sock.peer_has_ended(fd),
            _ if link.inn.look().is_closed || !link.inn.is_drained() => {}
            // Sent by what the peer's library does not see.
            // SAFETY: the caller's promise.
            _ => return unsafe { from_kernel(fd, buffers, from_byte, usize::MAX, flags) },
        }
    }
    Got::Nothing
}

/// What the kernel has after the ring, for what is left of buffers: how many bytes.
///
/// # Safety
/// As [`receive`].
unsafe fn what_follows(fd: c_int, sock: &Sock, buffers: &[iovec], from_byte: usize, flags: c_int) -> usize {
    if len_bytes(buffers) == from_byte {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { from_kernel(fd, buffers, from_byte, usize::MAX, flags) } {
        Got::Bytes(len) => len,
        Got::Error(number) => {
            sock.pending_error.store(number, SeqCst);
            0
        }
        Got::Nothing | Got::Kernel | Got::Again => 0,
    }
}

fn received(sock: &Sock, link: &Link, len: usize, how: Pull) {
    if how == Pull::Peek {
        return;
    }
    if let Some(shown) = sock.shown() {
        shown.received_bytes.add(len as u64);
    }
    if link.inn.takes_room_wake() {
        own_fds::ring(link.peer_door);
    }
}

/// All of the ring was received, and no more comes in it.
fn after_ring(fd: c_int, sock: &Sock, link: &Link, buffers: &[iovec], from_byte: usize, flags: c_int) -> Got {
    let error = sock.pending_error.swap(0, SeqCst);
    if error != 0 {
        return Got::Error(error);
    }
    if link.out.look().is_closed && from_byte == 0 {
        return Got::Kernel;
    }
    // SAFETY: the program's buffers.
    unsafe { from_kernel(fd, buffers, from_byte, usize::MAX, flags) }
}

/// What the kernel has to receive.
fn peek(fd: c_int) -> Got {
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

/// Bytes that can be received from the ring at once, beside those that the kernel has.
pub fn unread_bytes(sock: &Sock) -> u64 {
    sock.link().map_or(0, |link| link.inn.look().unread_bytes)
}

/// How many bytes are left, for a program that will not try again before an edge if told 0: so that is told only if the
/// ring is all that can have any. Else at least 1, as Linux tells after an end.
pub fn bytes_left_to_tell(sock: &Sock) -> u64 {
    let Some(link) = sock.link() else { return 1 };
    let inn = link.inn.look();
    let is_ring_all = link.inn.is_drained() && !inn.is_closed && link.words.load(link.peer_end, SeqCst) == 0;
    inn.unread_bytes.max(u64::from(!is_ring_all))
}

/// Bytes that the peer has not received from the ring.
pub fn unsent_bytes(sock: &Sock) -> u64 {
    sock.link().map_or(0, |link| link.out.look().unread_bytes)
}

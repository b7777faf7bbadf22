//! Waiting for descriptors of which some go through shared memory: poll, select, and calls that block.

use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use libc::{pollfd, sigset_t, timespec};

use crate::ring::Look;
use crate::sock::{InKernel, Link, Sock, SockRef, Stage};
use crate::spin::Spin;
use crate::{clock, epoll, errno, meet, own_fds, real, sock};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// What the rings say of a connection, and what the kernel is to be asked.
#[derive(Clone, Copy)]
pub struct Readiness {
    /// Of what was asked for.
    pub ready: i16,
    /// For the kernel.
    pub ask: i16,
}

/// Looks at a connection for poll's `events`.
pub fn readiness(sock: &Sock, events: i16) -> Readiness {
    let Some(link) = sock.link() else { return Readiness { ready: 0, ask: events } };
    let (mut ready, mut ask) = (0, events);
    if link.inn.look().unread_bytes > 0 || sock.pending_error.load(SeqCst) != 0 {
        ready |= events & IN;
    }
    let Look { is_closed, .. } = link.out.look();
    if link.out.has_begun() && !is_closed {
        // The kernel would say that there is room.
        ask = ask & !OUT | libc::POLLRDHUP;
        if link.out.has_room() {
            ready |= events & OUT;
        }
    }
    Readiness { ready, ask }
}

/// Whether one of these needs more than the kernel's poll.
pub fn concerns_us(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| {
        epoll::is_epoll(entry.fd)
            || sock::get(entry.fd).is_some_and(|sock| sock.stage() != Stage::Tcp && !sock.is_over())
    })
}

/// A connection among those that are waited for.
struct Waited {
    at: usize,
    sock: SockRef,
}

/// As ppoll(2), with a time instead of a timeout.
pub fn poll(fds: &mut [pollfd], until_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    for entry in fds.iter() {
        epoll::set_nested(entry.fd);
    }
    let socks =
        fds.iter().enumerate().filter_map(|(at, entry)| Some(Waited { at, sock: sock::get(entry.fd)? }));
    let socks: Vec<Waited> = socks.filter(|waited| waited.sock.stage() != Stage::Tcp).collect();
    for waited in socks.iter().filter(|waited| waited.sock.is_inherited()) {
        waited.sock.demote(farcall_stats::Why::Forked);
    }
    let mut kernel: Vec<pollfd> = Vec::with_capacity(fds.len() + 2 * socks.len());
    loop {
        let found = look(fds, &socks, &mut kernel, std::ptr::null());
        if found != 0 {
            return found;
        }
        if until_ns.is_some_and(|until| clock::now_ns() >= until) {
            return 0;
        }
        let spins = socks.iter().any(|waited| waited.sock.stage() == Stage::Met);
        let mut spin = Spin::begin();
        let any = || socks.iter().any(|waited| readiness(&waited.sock, fds[waited.at].events).ready != 0);
        let mut is_ready = any();
        while !is_ready && spins && spin.goes_on() {
            is_ready = any();
        }
        if is_ready {
            spin.found();
            continue;
        }
        let slept = sleep(fds, &socks, &mut kernel, until_ns, mask);
        spin.found();
        if slept < 0 {
            return -1;
        }
    }
}

/// Asks rings and kernel, without waiting: how many are ready.
fn look(fds: &mut [pollfd], socks: &[Waited], kernel: &mut Vec<pollfd>, mask: *const sigset_t) -> c_int {
    fill(fds, socks, kernel);
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the vector is valid.
    let asked = unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as _, &raw const none, mask) };
    if asked < 0 {
        return asked;
    }
    take(fds, socks, kernel)
}

/// What the kernel is asked: the program's descriptors, in their order.
fn fill(fds: &[pollfd], socks: &[Waited], kernel: &mut Vec<pollfd>) {
    kernel.clear();
    kernel.extend(fds.iter().map(|entry| pollfd { revents: 0, ..*entry }));
    for waited in socks {
        kernel[waited.at].events = readiness(&waited.sock, fds[waited.at].events).ask;
    }
}

/// The kernel's answers and the rings', for the program.
fn take(fds: &mut [pollfd], socks: &[Waited], kernel: &[pollfd]) -> c_int {
    for (entry, asked) in fds.iter_mut().zip(kernel) {
        entry.revents = asked.revents & (entry.events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
    }
    for waited in socks {
        let entry = &mut fds[waited.at];
        if kernel[waited.at].revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
            waited.sock.peer_has_ended(entry.fd);
        }
        entry.revents |= readiness(&waited.sock, entry.events).ready;
    }
    fds.iter().filter(|entry| entry.revents != 0).count() as c_int
}

/// Sleeps until something may have happened; -1: `errno` is set.
fn sleep(
    fds: &mut [pollfd],
    socks: &[Waited],
    kernel: &mut Vec<pollfd>,
    until_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    fill(fds, socks, kernel);
    let (mut inside, mut armed, mut is_ready) = (Vec::new(), Vec::new(), false);
    for waited in socks {
        let sock = &*waited.sock;
        let entry = &fds[waited.at];
        match sock.stage() {
            Stage::Accepted | Stage::Turning => {
                inside.push(InKernel::new(&sock.kernel_receivers));
                is_ready |= !matches!(sock.stage(), Stage::Accepted | Stage::Tcp);
            }
            Stage::Meeting => {
                kernel.push(pollfd { fd: sock.meeting_fd.load(SeqCst), events: libc::POLLIN, revents: 0 });
            }
            Stage::Met => {
                arm(sock);
                armed.push(waited);
                is_ready |= readiness(sock, entry.events).ready != 0;
                is_ready |= readiness(sock, entry.events).ask != kernel[waited.at].events;
                if let Some(link) = sock.link() {
                    kernel.push(pollfd { fd: link.door, events: libc::POLLIN, revents: 0 });
                }
            }
            Stage::Tcp => {}
        }
    }
    let slept = if is_ready { 0 } else { sleep_in_kernel(kernel, until_ns, mask) };
    let error = errno::get();
    drop(inside);
    for waited in socks {
        meet::look(fds[waited.at].fd, &waited.sock);
    }
    for door in kernel[fds.len()..].iter().filter(|door| door.revents & libc::POLLIN != 0) {
        // A meeting socket is no doorbell, and not silenced by a read.
        if own_fds::is_ours(door.fd) {
            own_fds::silence(door.fd);
        }
    }
    // Afterwards, so that a doorbell which is rung for another thread is heard.
    for waited in armed {
        disarm(&waited.sock);
    }
    errno::set(error);
    slept
}

fn sleep_in_kernel(kernel: &mut [pollfd], until_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    let rest = until_ns.map(|until| {
        let rest_ns = until.saturating_sub(clock::now_ns());
        timespec { tv_sec: (rest_ns / 1_000_000_000) as _, tv_nsec: (rest_ns % 1_000_000_000) as _ }
    });
    let rest = rest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice and the time are valid; the mask is the program's.
    unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as _, rest, mask) }
}

/// Says to the peer that somebody sleeps; the caller must look once more.
pub fn arm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    sock.sleepers.fetch_add(1, SeqCst);
    arm_ring(link);
    if let Some(shown) = sock.shown() {
        shown.sleeps.increment();
    }
}

/// Who waits for room does not sleep where there is some; who fills the ring meanwhile arms it (`io::send`).
fn arm_ring(link: &Link) {
    link.inn.arm_data();
    if !link.out.has_room() {
        link.out.arm_room();
    }
}

/// Sleeps no more. The doorbell may have been meant for others who still sleep.
pub fn disarm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    if sock.sleepers.fetch_sub(1, SeqCst) > 1 {
        arm_ring(link);
        if readiness(sock, IN | OUT).ready != 0 {
            own_fds::ring(link.door);
        }
    }
}

/// Whether the program wants calls that a signal interrupted to go on: every handler that it has says so.
pub fn all_handlers_restart() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: zeros are a valid action; it is only asked for.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        let is_handled =
            asked == 0 && action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !is_handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

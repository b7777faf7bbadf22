//! TCP sockets of this process that may use rings.

mod kernel_calls;
pub mod layout;
mod link;
mod table;
mod usage;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64};

use farcall_stats::{Block, Connection, PathReason};

pub use self::kernel_calls::{KernelCall, KernelWait};
pub use self::link::Link;
pub use self::table::{SockRef, before_fork, each, get, lock_for_fork, new, put, take};
pub use self::usage::{Direction, Usage};
use crate::waiters::Waiters;
use crate::{own_fds, thread};

/// Stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Accepted, and on TCP: the connection has not lasted, or its peer is not ready to pair.
    Accepted = 1,
    /// Connected, and on TCP: the accepting end can find this one.
    Published = 2,
    /// The ends are paired; the state of each direction is in its [`switch`](crate::switch).
    Paired = 3,
    /// It stays on TCP.
    Tcp = 4,
    /// The ends are being paired: no thread enters the kernel's TCP with it to receive.
    Switching = 5,
    /// Connected, and on TCP: the connection has not lasted.
    Connected = 6,
}

impl Stage {
    /// Returns whether all bytes use TCP and may use shared memory later.
    pub fn is_unpaired(self) -> bool {
        matches!(self, Self::Accepted | Self::Connected | Self::Published)
    }
}

/// Socket by which two ends pair.
pub struct Rendezvous {
    /// Descriptor of the library.
    pub fd: RawFd,
    /// `true` if it is a connection with the accepting end, which sends the shared memory; `false` if it listens.
    pub is_connected: bool,
}

/// Maximum number of polls, most with a pause, for the end of a move. A move is a few system calls: after this many
/// polls its thread must be the polling one.
const SETTLE_POLLS_MAX: u32 = 2_000;

/// One connection of this process.
pub struct Sock {
    refs: AtomicU32,
    is_owned: AtomicBool,
    stage: AtomicU8,
    /// `true` while a thread pairs the ends.
    is_pairing: AtomicBool,
    generation: AtomicU32,
    /// `true` if a child process has it as well.
    is_forked: AtomicBool,
    /// Number of its descriptors in this process.
    fds: AtomicU32,
    /// Socket by which the accepting end finds the connecting one; -1: none.
    rendezvous_fd: AtomicI32,
    /// `true` if `rendezvous_fd` is a connection with the accepting end, which is about to send.
    is_rendezvous_connected: AtomicBool,
    /// Number of attempts to pair.
    pairing_tries: AtomicU32,
    /// History of its transfers.
    pub usage: Usage,
    /// `true` if `addresses` and `block` are written.
    is_described: AtomicBool,
    /// Number of threads that are, or may soon be, in a call that receives by the kernel's TCP.
    kernel_receivers: AtomicU32,
    /// Number of threads that are, or may soon be, in a call that sends by the kernel's TCP.
    kernel_senders: AtomicU32,
    /// Threads that sleep in poll for it.
    pub waiters: Waiters,
    /// O_NONBLOCK: 0 not known, 1 no, 2 yes.
    nonblocking: AtomicU8,
    /// Number of times that a sender found no space.
    full_count: AtomicU32,
    /// Reported once, to the next receiver.
    pending_error: AtomicI32,
    /// SO_RCVLOWAT, if the program has changed it since the ends were paired; otherwise 1.
    low_water_bytes: AtomicU32,
    /// TCP_INQ is on.
    reports_inq: AtomicBool,
    /// Time of the last query of the kernel's receive queue, in nanoseconds.
    kernel_checked_ns: AtomicU64,
    addresses: UnsafeCell<Option<(SocketAddr, SocketAddr)>>,
    link: UnsafeCell<Option<Link>>,
    block: UnsafeCell<Option<Block<Connection>>>,
}

// SAFETY: the cells are written once by the thread that has set `is_pairing`, before `is_described` (`addresses`,
// `block`) or `stage` (`link`) is stored, and emptied after the last use; everything else is atomic.
unsafe impl Sync for Sock {}

// SAFETY: as for `Sync`, the cells are written by one thread before others read them, whichever thread that is; what
// they hold may be used and dropped by any thread.
unsafe impl Send for Sock {}

impl Sock {
    fn empty() -> Self {
        Self {
            refs: AtomicU32::new(0),
            is_owned: AtomicBool::new(false),
            stage: AtomicU8::new(Stage::Tcp as u8),
            is_pairing: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            is_forked: AtomicBool::new(false),
            fds: AtomicU32::new(0),
            rendezvous_fd: AtomicI32::new(-1),
            is_rendezvous_connected: AtomicBool::new(false),
            pairing_tries: AtomicU32::new(0),
            usage: Usage::new(),
            is_described: AtomicBool::new(false),
            kernel_receivers: AtomicU32::new(0),
            kernel_senders: AtomicU32::new(0),
            waiters: Waiters::new(),
            nonblocking: AtomicU8::new(0),
            full_count: AtomicU32::new(0),
            pending_error: AtomicI32::new(0),
            low_water_bytes: AtomicU32::new(1),
            reports_inq: AtomicBool::new(false),
            kernel_checked_ns: AtomicU64::new(0),
            addresses: UnsafeCell::new(None),
            link: UnsafeCell::new(None),
            block: UnsafeCell::new(None),
        }
    }

    /// Resets everything after the last use.
    fn end(&self) {
        // SAFETY: called after the last use: no other thread reads or writes these cells.
        let (link, block) = unsafe { ((*self.link.get()).take(), (*self.block.get()).take()) };
        if self.generation.load(Relaxed) == thread::generation() {
            drop(block);
        } else {
            // The block belongs to the parent.
            std::mem::forget(block);
        }
        // SAFETY: this is called after the last use, so that no other thread reads the cell.
        unsafe { *self.addresses.get() = None };
        self.is_described.store(false, Relaxed);
        self.close_rendezvous();
        drop(link);
        self.waiters.reset();
        self.stage.store(Stage::Tcp as u8, Release);
        self.is_pairing.store(false, Relaxed);
        self.is_forked.store(false, Relaxed);
        for counter in
            [&self.fds, &self.pairing_tries, &self.kernel_receivers, &self.kernel_senders, &self.full_count]
        {
            counter.store(0, Relaxed);
        }
        self.nonblocking.store(0, Relaxed);
        self.pending_error.store(0, Relaxed);
        self.low_water_bytes.store(1, Relaxed);
        self.reports_inq.store(false, Relaxed);
        self.is_rendezvous_connected.store(false, Relaxed);
        self.kernel_checked_ns.store(0, Relaxed);
    }

    /// Returns the stage of the connection.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            1 => Stage::Accepted,
            2 => Stage::Published,
            3 => Stage::Paired,
            5 => Stage::Switching,
            6 => Stage::Connected,
            _ => Stage::Tcp,
        }
    }

    /// Returns the memory shared with the peer; `None` before the connection has moved.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        if self.stage() != Stage::Paired {
            return None;
        }
        // SAFETY: written before the stage was stored, and not again while there is a use of the socket.
        unsafe { (*self.link.get()).as_ref() }
    }

    /// Returns the number of bytes that can be received from the ring at once, in addition to those that the kernel
    /// has.
    pub fn unread_bytes(&self) -> u64 {
        self.link().map_or(0, |link| link.incoming.snapshot().unread_bytes)
    }

    /// Returns its own address and its peer's; `None` before it has been described.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        if !self.is_described.load(Acquire) {
            return None;
        }
        // SAFETY: written before `is_described`, and not again while there is a use of the socket.
        unsafe { *self.addresses.get() }
    }

    /// Returns the statistics that `farcall explain` shows; `None` before it has been described, and in a child of its
    /// process.
    pub fn stats(&self) -> Option<&Block<Connection>> {
        if !self.is_described.load(Acquire) || self.is_inherited() {
            return None;
        }
        // SAFETY: written before `is_described`, and not again while there is a use of the socket, which the caller
        // has.
        unsafe { (*self.block.get()).as_ref() }
    }

    /// Records its addresses, and lists it for `farcall explain`. Only inside of [`Sock::while_pairing`].
    pub fn describe(&self, local: SocketAddr, peer: SocketAddr) {
        if self.is_described.load(Acquire) {
            return;
        }
        let how = if self.stage() == Stage::Accepted { "accepted" } else { "connected" };
        let block = Block::<Connection>::new(&format!("tcp {local} {peer} {how}"), 0);
        block.why.set(PathReason::NotPaired as u64);
        // SAFETY: one thread is inside of `while_pairing`, and others read only after `is_described`.
        unsafe {
            *self.addresses.get() = Some((local, peer));
            *self.block.get() = Some(block);
        }
        self.is_described.store(true, Release);
    }

    /// Returns the number of its descriptors in this process.
    pub fn descriptors(&self) -> u32 {
        self.fds.load(Acquire)
    }

    /// Returns whether a child process has it as well.
    pub fn is_forked(&self) -> bool {
        self.is_forked.load(Relaxed)
    }

    /// Counts a try to pair the ends. Returns the number of tries.
    pub fn count_pairing_try(&self) -> u32 {
        self.pairing_tries.fetch_add(1, AcqRel) + 1
    }

    fn kernel_calls(&self, direction: Direction) -> &AtomicU32 {
        match direction {
            Direction::Send => &self.kernel_senders,
            Direction::Receive => &self.kernel_receivers,
        }
    }

    /// Counts this thread among those in a call of the kernel's TCP until the result is dropped.
    pub fn enter_kernel(&self, direction: Direction) -> KernelCall<'_> {
        KernelCall::new(self.kernel_calls(direction))
    }

    /// Returns whether a thread is, or may soon be, in such a call.
    pub fn is_in_kernel(&self, direction: Direction) -> bool {
        self.kernel_calls(direction).load(SeqCst) != 0
    }

    /// Returns whether calls do not wait (O_NONBLOCK); `None` if that is not known.
    pub fn known_nonblocking(&self) -> Option<bool> {
        Some(self.nonblocking.load(Relaxed)).filter(|known| *known != 0).map(|known| known == 2)
    }

    /// Records whether calls do not wait.
    pub fn set_known_nonblocking(&self, is_nonblocking: Option<bool>) {
        self.nonblocking.store(is_nonblocking.map_or(0, |is_set| if is_set { 2 } else { 1 }), Relaxed);
    }

    /// Returns the number of times that a sender found no space.
    pub fn full_count(&self) -> u32 {
        self.full_count.load(SeqCst)
    }

    /// Counts a sender that finds no space.
    pub fn count_full(&self) {
        self.full_count.fetch_add(1, SeqCst);
    }

    /// Returns whether an error is to be reported.
    pub fn has_pending_error(&self) -> bool {
        self.pending_error.load(SeqCst) != 0
    }

    /// Stores the error to report to the next caller; 0: none.
    pub fn set_pending_error(&self, number: c_int) {
        self.pending_error.store(number, SeqCst);
    }

    /// Returns the error to report, which is not reported again; 0: none.
    pub fn take_pending_error(&self) -> c_int {
        self.pending_error.swap(0, SeqCst)
    }

    /// Returns SO_RCVLOWAT in bytes; 1 if the program has not changed it since the ends were paired.
    pub fn low_water_bytes(&self) -> u32 {
        self.low_water_bytes.load(SeqCst)
    }

    /// Records SO_RCVLOWAT.
    pub fn set_low_water_bytes(&self, len_bytes: u32) {
        self.low_water_bytes.store(len_bytes, SeqCst);
    }

    /// Returns whether messages state how many bytes are left (TCP_INQ).
    pub fn reports_inq(&self) -> bool {
        self.reports_inq.load(Relaxed)
    }

    /// Records TCP_INQ.
    pub fn set_reports_inq(&self, is_on: bool) {
        self.reports_inq.store(is_on, Relaxed);
    }

    /// Returns the time of the last query of the kernel's receive queue, in nanoseconds.
    pub fn kernel_checked_ns(&self) -> u64 {
        self.kernel_checked_ns.load(Relaxed)
    }

    /// Records a query of the kernel's receive queue.
    pub fn set_kernel_checked_ns(&self, now_ns: u64) {
        self.kernel_checked_ns.store(now_ns, Relaxed);
    }

    /// Returns the socket by which the connecting end is found, while it has one.
    pub fn rendezvous(&self) -> Option<Rendezvous> {
        let fd = self.rendezvous_fd.load(Acquire);
        (fd >= 0).then(|| Rendezvous { fd, is_connected: self.is_rendezvous_connected.load(Acquire) })
    }

    /// Replaces the listening rendezvous socket by a connection with the accepting end.
    pub fn replace_rendezvous(&self, connected: RawFd) {
        self.close_rendezvous();
        self.rendezvous_fd.store(connected, SeqCst);
        self.is_rendezvous_connected.store(true, SeqCst);
    }

    /// Returns whether this process inherited it by a fork.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.generation.load(Relaxed) != thread::generation()
    }

    /// Runs `pair` unless another thread does so.
    pub fn while_pairing(&self, pair: impl FnOnce()) {
        if !self.is_pairing.swap(true, AcqRel) {
            pair();
            self.is_pairing.store(false, Release);
        }
    }

    /// Switches to shared memory. Only inside of [`Sock::while_pairing`].
    pub fn set_paired(&self, link: Link) {
        if let Some(stats) = self.stats() {
            stats.why.set(PathReason::Paired as u64);
            stats.ring_bytes.set(link.outgoing.len_bytes() as u64);
        }
        // SAFETY: only the thread that has set `Stage::Switching` writes the link, and no thread reads it before
        // `Stage::Paired` is stored below.
        unsafe { *self.link.get() = Some(link) };
        self.stage.store(Stage::Paired as u8, SeqCst);
    }

    /// Lets the accepting end find it from now on. Only inside of [`Sock::while_pairing`].
    pub fn publish(&self, rendezvous_fd: RawFd) {
        self.rendezvous_fd.store(rendezvous_fd, SeqCst);
        let (from, to) = (Stage::Connected as u8, Stage::Published as u8);
        if self.stage.compare_exchange(from, to, SeqCst, Relaxed).is_err() {
            self.close_rendezvous();
        }
    }

    /// Runs `switch` while no other thread enters the kernel's TCP with this socket. Does nothing if a thread receives
    /// there. The socket stays in its stage unless `switch` succeeds.
    pub fn while_switching(
        &self,
        from: Stage,
        switch: impl FnOnce() -> Result<(), PathReason>,
    ) -> Result<(), PathReason> {
        if self.stage.compare_exchange(from as u8, Stage::Switching as u8, SeqCst, Relaxed).is_err() {
            return Ok(());
        }
        let done = if self.kernel_receivers.load(SeqCst) == 0 { switch() } else { Ok(()) };
        let _ = self.stage.compare_exchange(Stage::Switching as u8, from as u8, SeqCst, Relaxed);
        done
    }

    /// Returns the stage after the thread that switches the connection has finished. In a signal handler that
    /// interrupted that thread it remains [`Stage::Switching`].
    pub fn settled_stage(&self) -> Stage {
        for tries in 0..SETTLE_POLLS_MAX {
            match self.stage() {
                Stage::Switching if tries < 100 => std::hint::spin_loop(),
                Stage::Switching => thread::pause(),
                stage => return stage,
            }
        }
        Stage::Switching
    }

    /// Leaves the connection on TCP, unless the ends are paired.
    pub fn stay_on_tcp(&self, why: PathReason) {
        self.settled_stage();
        for stage in [Stage::Accepted, Stage::Connected, Stage::Published] {
            if self.stage.compare_exchange(stage as u8, Stage::Tcp as u8, SeqCst, Relaxed).is_ok() {
                self.close_rendezvous();
                if let Some(stats) = self.stats() {
                    stats.why.set(why as u64);
                }
            }
        }
    }

    /// Stops waiting for the accepting end.
    pub fn close_rendezvous(&self) {
        let fd = self.rendezvous_fd.swap(-1, AcqRel);
        if fd >= 0 {
            if !self.is_inherited() {
                crate::rendezvous::socket::forget(fd);
            }
            own_fds::close(fd);
        }
    }

    /// Ends both rings at the bytes that they have reached: all later bytes use TCP.
    pub fn demote(&self, why: PathReason) {
        self.stay_on_tcp(why);
        let Some(link) = self.link() else { return };
        if link.is_closed() {
            return;
        }
        link.close();
        if let Some(stats) = self.stats() {
            stats.why.set(why as u64);
        }
        link.doorbell.notify();
        link.doorbell.close();
        self.waiters.wake_followers();
    }

    /// Returns whether both rings have ended and all bytes in them from the peer have been received: the kernel has all
    /// later bytes.
    pub fn has_returned(&self) -> bool {
        let Some(link) = self.link() else { return self.stage() == Stage::Tcp };
        let incoming = link.incoming.snapshot();
        incoming.is_closed
            && incoming.unread_bytes == 0
            && link.outgoing.snapshot().is_closed
            && !self.has_pending_error()
    }

    /// Called when the kernel reports the end of the peer. If the peer has ended without notification, the bytes that
    /// it had not received are lost, which TCP reports as a reset.
    pub fn on_peer_end(&self, fd: c_int) {
        let Some(link) = self.link() else { return };
        if link.is_closed() {
            return;
        }
        let was_announced = link.has_peer_announced_end();
        link.close();
        if !was_announced && link.outgoing.snapshot().unread_bytes > 0 {
            // The kernel's own error is of the same reset, and must not be reported a second time.
            let error = crate::tcp::take_error(fd);
            self.set_pending_error(if error == 0 { libc::ECONNRESET } else { error });
            // Afterwards the kernel returns what it returns after a reset.
            // SAFETY: no memory is involved.
            unsafe { crate::libc_next::shutdown(fd, libc::SHUT_RDWR) };
        }
        if let Some(stats) = self.stats() {
            stats.why.set(PathReason::PeerEnded as u64);
        }
    }
}

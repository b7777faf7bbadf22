//! The TCP sockets of this process that may go through shared memory.

mod inside;
pub mod layout;
mod link;
mod table;
mod uses;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64};

use farcall_stats::{Block, Connection, PathReason};

pub use self::inside::{InKernel, KernelWait};
pub use self::link::Link;
pub use self::table::{SockRef, before_fork, each, get, lock_for_fork, new, put, take};
pub use self::uses::{Direction, Uses};
use crate::sleepers::Sleeping;
use crate::{own_fds, thread};

/// Stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Accepted, and on TCP: the connection has not lasted, or its peer is not ready to be met.
    Accepted = 1,
    /// Connected, and on TCP: the accepting end can find this one.
    Meeting = 2,
    /// The peer was met; the rings say how far they are used.
    Met = 3,
    /// It stays on TCP.
    Tcp = 4,
    /// About to be met: no thread enters the kernel's TCP with it to receive.
    Turning = 5,
    /// Connected, and on TCP: the connection has not lasted.
    Connected = 6,
}

impl Stage {
    /// Returns whether all bytes use TCP and may use shared memory later.
    pub fn is_unmet(self) -> bool {
        matches!(self, Self::Accepted | Self::Connected | Self::Meeting)
    }
}

/// Socket by which two ends meet.
pub struct Rendezvous {
    /// Descriptor of the library.
    pub fd: RawFd,
    /// `true` if it is a connection with the accepting end, which sends the shared memory; `false` if it listens.
    pub is_connected: bool,
}

/// Maximum number of polls, most with a pause, for the end of a move. A move is a few system calls: after this many
/// polls its thread must be the polling one.
const SETTLE_TRIES: u32 = 2_000;

/// One connection of this process.
pub struct Sock {
    refs: AtomicU32,
    is_owned: AtomicBool,
    stage: AtomicU8,
    /// Held by the thread that meets the peer.
    meets: AtomicBool,
    generation: AtomicU32,
    /// Whether a child process has it as well.
    is_forked: AtomicBool,
    /// Number of its descriptors in this process.
    fds: AtomicU32,
    /// Where the accepting end finds a connecting one; -1: none.
    meeting_fd: AtomicI32,
    /// Whether `meeting_fd` is a connection with the accepting end, which is about to send.
    is_offered: AtomicBool,
    /// Number of times that a meeting was tried.
    tries: AtomicU32,
    /// Transfers before the ends have met.
    pub uses: Uses,
    /// Whether `addresses` and `block` are written.
    is_described: AtomicBool,
    /// Threads that are, or may soon be, inside of the kernel's TCP with it.
    kernel_receivers: AtomicU32,
    /// As `kernel_receivers`.
    kernel_senders: AtomicU32,
    /// Threads that sleep in poll for it.
    pub sleeping: Sleeping,
    /// O_NONBLOCK: 0 not known, 1 no, 2 yes.
    nonblocking: AtomicU8,
    /// Number of times that a sender found no space.
    full_count: AtomicU32,
    /// Reported once, to the next receiver.
    pending_error: AtomicI32,
    /// SO_RCVLOWAT, if the program has changed it since the ends met; otherwise 1.
    low_water_bytes: AtomicU32,
    /// TCP_INQ is on.
    tells_inq: AtomicBool,
    /// When the kernel was last asked about a receive queue, in nanoseconds.
    looked_ns: AtomicU64,
    addresses: UnsafeCell<Option<(SocketAddr, SocketAddr)>>,
    link: UnsafeCell<Option<Link>>,
    block: UnsafeCell<Option<Block<Connection>>>,
}

// SAFETY: the cells are written once by the thread that holds `meets`, before `is_described` (`addresses`, `block`) or
// `stage` (`link`) says so, and emptied after the last use; everything else is atomic.
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
            meets: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            is_forked: AtomicBool::new(false),
            fds: AtomicU32::new(0),
            meeting_fd: AtomicI32::new(-1),
            is_offered: AtomicBool::new(false),
            tries: AtomicU32::new(0),
            uses: Uses::new(),
            is_described: AtomicBool::new(false),
            kernel_receivers: AtomicU32::new(0),
            kernel_senders: AtomicU32::new(0),
            sleeping: Sleeping::new(),
            nonblocking: AtomicU8::new(0),
            full_count: AtomicU32::new(0),
            pending_error: AtomicI32::new(0),
            low_water_bytes: AtomicU32::new(1),
            tells_inq: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
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
            // Its place is the parent's.
            std::mem::forget(block);
        }
        // SAFETY: this is called after the last use, so that no other thread reads the cell.
        unsafe { *self.addresses.get() = None };
        self.is_described.store(false, Relaxed);
        self.close_meeting();
        drop(link);
        self.sleeping.reset();
        self.stage.store(Stage::Tcp as u8, Release);
        self.meets.store(false, Relaxed);
        self.is_forked.store(false, Relaxed);
        for counter in
            [&self.fds, &self.tries, &self.kernel_receivers, &self.kernel_senders, &self.full_count]
        {
            counter.store(0, Relaxed);
        }
        self.nonblocking.store(0, Relaxed);
        self.pending_error.store(0, Relaxed);
        self.low_water_bytes.store(1, Relaxed);
        self.tells_inq.store(false, Relaxed);
        self.is_offered.store(false, Relaxed);
        self.looked_ns.store(0, Relaxed);
    }

    /// Returns the stage of the connection.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            1 => Stage::Accepted,
            2 => Stage::Meeting,
            3 => Stage::Met,
            5 => Stage::Turning,
            6 => Stage::Connected,
            _ => Stage::Tcp,
        }
    }

    /// Returns the memory shared with the peer; `None` before the connection has moved.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        if self.stage() != Stage::Met {
            return None;
        }
        // SAFETY: written before the stage said so, and not again while there is a use of the socket.
        unsafe { (*self.link.get()).as_ref() }
    }

    /// Returns the number of bytes that can be received from the ring at once, in addition to those that the kernel has.
    pub fn unread_bytes(&self) -> u64 {
        self.link().map_or(0, |link| link.inn.look().unread_bytes)
    }

    /// Its own address and its peer's, once it has been described.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        if !self.is_described.load(Acquire) {
            return None;
        }
        // SAFETY: written before `is_described`, and not again while there is a use of the socket.
        unsafe { *self.addresses.get() }
    }

    /// Returns the statistics that `farcall explain` shows; `None` before it has been described, and in a child of its
    /// process.
    pub fn shown(&self) -> Option<&Block<Connection>> {
        if !self.is_described.load(Acquire) || self.is_inherited() {
            return None;
        }
        // SAFETY: written before `is_described`, and not again while there is a use of the socket, which the caller
        // has.
        unsafe { (*self.block.get()).as_ref() }
    }

    /// Records its addresses, and lists it for `farcall explain`. Only inside of [`Sock::while_meeting`].
    pub fn describe(&self, local: SocketAddr, peer: SocketAddr) {
        if self.is_described.load(Acquire) {
            return;
        }
        let how = if self.stage() == Stage::Accepted { "accepted" } else { "connected" };
        let block = Block::<Connection>::new(&format!("tcp {local} {peer} {how}"), 0);
        block.why.set(PathReason::NotPaired as u64);
        // SAFETY: one thread is inside of `while_meeting`, and others read only after `is_described`.
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
        self.tries.fetch_add(1, AcqRel) + 1
    }

    fn kernel_calls(&self, direction: Direction) -> &AtomicU32 {
        match direction {
            Direction::Send => &self.kernel_senders,
            Direction::Receive => &self.kernel_receivers,
        }
    }

    /// Counts this thread among those in a call of the kernel's TCP until the result is dropped.
    pub fn enter_kernel(&self, direction: Direction) -> InKernel<'_> {
        InKernel::new(self.kernel_calls(direction))
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
        self.tells_inq.load(Relaxed)
    }

    /// Records TCP_INQ.
    pub fn set_reports_inq(&self, is_on: bool) {
        self.tells_inq.store(is_on, Relaxed);
    }

    /// Returns the time of the last query of the kernel's receive queue, in nanoseconds.
    pub fn kernel_checked_ns(&self) -> u64 {
        self.looked_ns.load(Relaxed)
    }

    /// Records a query of the kernel's receive queue.
    pub fn set_kernel_checked_ns(&self, now_ns: u64) {
        self.looked_ns.store(now_ns, Relaxed);
    }

    /// Returns the socket by which the connecting end is found, while it has one.
    pub fn rendezvous(&self) -> Option<Rendezvous> {
        let fd = self.meeting_fd.load(Acquire);
        (fd >= 0).then(|| Rendezvous { fd, is_connected: self.is_offered.load(Acquire) })
    }

    /// Closes the listening rendezvous socket; a connection with the accepting end takes its place.
    pub fn replace_rendezvous(&self, connected: RawFd) {
        self.close_meeting();
        self.meeting_fd.store(connected, SeqCst);
        self.is_offered.store(true, SeqCst);
    }

    /// Returns whether this process inherited it by a fork.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.generation.load(Relaxed) != thread::generation()
    }

    /// Runs `meet` unless another thread does.
    pub fn while_meeting(&self, meet: impl FnOnce()) {
        if !self.meets.swap(true, AcqRel) {
            meet();
            self.meets.store(false, Release);
        }
    }

    /// Switches to shared memory. Only inside of [`Sock::while_meeting`].
    pub fn set_met(&self, link: Link) {
        if let Some(shown) = self.shown() {
            shown.why.set(PathReason::Met as u64);
            shown.ring_bytes.set(link.out.len_bytes() as u64);
        }
        // SAFETY: only the thread that has set `Stage::Turning` writes the link, and no thread reads it before
        // `Stage::Met` is stored below.
        unsafe { *self.link.get() = Some(link) };
        self.stage.store(Stage::Met as u8, SeqCst);
    }

    /// Lets the accepting end find it from now on. Only inside of [`Sock::while_meeting`].
    pub fn publish(&self, meeting_fd: RawFd) {
        self.meeting_fd.store(meeting_fd, SeqCst);
        let (from, to) = (Stage::Connected as u8, Stage::Meeting as u8);
        if self.stage.compare_exchange(from, to, SeqCst, Relaxed).is_err() {
            self.close_meeting();
        }
    }

    /// Runs `turn` while no other thread enters the kernel's TCP with this socket. Does nothing if a thread receives
    /// there. The socket stays in its stage unless `turn` succeeds.
    pub fn while_turning(
        &self,
        from: Stage,
        turn: impl FnOnce() -> Result<(), PathReason>,
    ) -> Result<(), PathReason> {
        if self.stage.compare_exchange(from as u8, Stage::Turning as u8, SeqCst, Relaxed).is_err() {
            return Ok(());
        }
        let done = if self.kernel_receivers.load(SeqCst) == 0 { turn() } else { Ok(()) };
        let _ = self.stage.compare_exchange(Stage::Turning as u8, from as u8, SeqCst, Relaxed);
        done
    }

    /// Returns the stage after the thread that is turning the connection has finished. In a signal handler that
    /// interrupted that thread it remains [`Stage::Turning`].
    pub fn settled_stage(&self) -> Stage {
        for tries in 0..SETTLE_TRIES {
            match self.stage() {
                Stage::Turning if tries < 100 => std::hint::spin_loop(),
                Stage::Turning => thread::give_way(),
                stage => return stage,
            }
        }
        Stage::Turning
    }

    /// Stays on TCP, if the peer has not been met.
    pub fn stay(&self, why: PathReason) {
        self.settled_stage();
        for stage in [Stage::Accepted, Stage::Connected, Stage::Meeting] {
            if self.stage.compare_exchange(stage as u8, Stage::Tcp as u8, SeqCst, Relaxed).is_ok() {
                self.close_meeting();
                if let Some(shown) = self.shown() {
                    shown.why.set(why as u64);
                }
            }
        }
    }

    /// Stops waiting for the accepting end.
    pub fn close_meeting(&self) {
        let fd = self.meeting_fd.swap(-1, AcqRel);
        if fd >= 0 {
            if !self.is_inherited() {
                crate::meet::place::forget(fd);
            }
            own_fds::close(fd);
        }
    }

    /// Ends both rings at the bytes that they have come to: everything later goes by TCP.
    pub fn demote(&self, why: PathReason) {
        self.stay(why);
        let Some(link) = self.link() else { return };
        if link.is_closed() {
            return;
        }
        link.close();
        if let Some(shown) = self.shown() {
            shown.why.set(why as u64);
        }
        link.door.ring();
        link.door.end();
        self.sleeping.wake_followers();
    }

    /// Returns whether both rings have ended and all bytes in them from the peer have been received: the kernel has all
    /// later bytes.
    pub fn is_over(&self) -> bool {
        let Some(link) = self.link() else { return self.stage() == Stage::Tcp };
        let inn = link.inn.look();
        inn.is_closed && inn.unread_bytes == 0 && link.out.look().is_closed && !self.has_pending_error()
    }

    /// Called when the kernel reports the end of the peer. If the peer has ended without notification, the bytes that
    /// it had not received are lost, which is a reset, as with TCP.
    pub fn peer_has_ended(&self, fd: c_int) {
        let Some(link) = self.link() else { return };
        if link.is_closed() {
            return;
        }
        let was_announced = link.has_peer_announced_end();
        link.close();
        if !was_announced && link.out.look().unread_bytes > 0 {
            // The kernel's own error is of the same reset, and must not be reported a second time.
            let error = crate::tcp::take_error(fd);
            self.set_pending_error(if error == 0 { libc::ECONNRESET } else { error });
            // From here on the kernel answers as after a reset.
            // SAFETY: no memory is involved.
            unsafe { crate::real::shutdown(fd, libc::SHUT_RDWR) };
        }
        if let Some(shown) = self.shown() {
            shown.why.set(PathReason::PeerEnded as u64);
        }
    }
}

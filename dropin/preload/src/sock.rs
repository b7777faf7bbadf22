//! The TCP sockets of this process that may go through shared memory, by descriptor.
//!
//! A `Sock` is never freed, only used again: so a descriptor's can be looked up without a lock, by counting a use of it
//! and looking whether it is still the descriptor's.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use farcall_shm::{Mutex, SharedMem};
use farcall_stats::{Block, Connection, Why};

use crate::own_fds;
use crate::ring::Ring;
use crate::thread;

/// Descriptors from this number on are left alone.
pub const FDS: usize = 65_536;

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Accepted; whether its peer can be met is not known yet.
    Accepted = 1,
    /// Connected; the peer is expected.
    Meeting = 2,
    /// The peer was met; the rings say how far they are used.
    Met = 3,
    /// It stays on TCP.
    Tcp = 4,
    /// About to be met: nobody enters the kernel's TCP with it.
    Turning = 5,
}

/// What two ends share, seen from one of them.
pub struct Link {
    /// Bytes to the peer.
    pub out: Ring,
    /// Bytes from the peer.
    pub inn: Ring,
    /// The words about the whole connection.
    pub words: SharedMem,
    /// Where in them this end says that it closed or shut down, and where the peer does.
    pub own_end: usize,
    /// As `own_end`.
    pub peer_end: usize,
    /// Rung by the peer.
    pub door: RawFd,
    /// The peer's.
    pub peer_door: RawFd,
}

/// Where in the words an end that connected says that it mapped them.
pub const MAPPED: usize = 16;

/// A turn is a few system calls: after so many looks, most with a pause, its thread must be ours.
const SETTLE_TRIES: u32 = 2_000;

/// One connection of this process.
pub struct Sock {
    uses: AtomicU32,
    is_owned: AtomicBool,
    stage: AtomicU8,
    /// Held by who meets the peer.
    meets: AtomicBool,
    generation: AtomicU32,
    /// Whether a child has it, too.
    pub is_forked: AtomicBool,
    /// How many descriptors of this process it has.
    pub fds: AtomicU32,
    /// Where the accepting end finds a connecting one; -1: none.
    pub meeting_fd: AtomicI32,
    /// Whether `meeting_fd` is a connection with the accepting end, which is about to send.
    pub is_offered: AtomicBool,
    /// How often the peer was looked for.
    pub tries: AtomicU32,
    /// Threads that are, or may soon be, inside of the kernel's TCP with it.
    pub kernel_receivers: AtomicU32,
    /// As `kernel_receivers`.
    pub kernel_senders: AtomicU32,
    /// Who sleeps on its doorbell.
    pub sleepers: AtomicU32,
    /// O_NONBLOCK: 0 not known, 1 no, 2 yes.
    pub nonblocking: AtomicU8,
    /// How often a sender was told that there is no room.
    pub full_count: AtomicU32,
    /// Told once to who receives.
    pub pending_error: AtomicI32,
    /// TCP_INQ is on.
    pub tells_inq: AtomicBool,
    /// When the kernel was last asked about a receive queue, in nanoseconds.
    pub looked_ns: AtomicU64,
    addresses: UnsafeCell<Option<(SocketAddr, SocketAddr)>>,
    link: UnsafeCell<Option<Link>>,
    block: UnsafeCell<Option<Block<Connection>>>,
}

// SAFETY: the cells are written before the socket is published (`addresses`, `block`), under `meets` before `stage` says
// so (`link`), or after the last use; everything else is atomic.
unsafe impl Sync for Sock {}
// SAFETY: as above.
unsafe impl Send for Sock {}

static TABLE: [AtomicPtr<Sock>; FDS] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS];
static ALL: Mutex<Vec<&'static Sock>> = Mutex::new(Vec::new());
static FREE: Mutex<Vec<&'static Sock>> = Mutex::new(Vec::new());

/// A use of a socket.
pub struct SockRef(&'static Sock);

impl Deref for SockRef {
    type Target = Sock;

    fn deref(&self) -> &Sock {
        self.0
    }
}

impl Clone for SockRef {
    fn clone(&self) -> Self {
        self.0.uses.fetch_add(1, Relaxed);
        Self(self.0)
    }
}

impl Drop for SockRef {
    fn drop(&mut self) {
        if self.0.uses.fetch_sub(1, AcqRel) == 1 && self.0.is_owned.swap(false, AcqRel) {
            self.0.end();
            FREE.lock().push(self.0);
        }
    }
}

/// The socket of a descriptor.
#[inline]
pub fn get(fd: c_int) -> Option<SockRef> {
    let entry = TABLE.get(fd as usize)?;
    loop {
        let found = entry.load(Acquire);
        if found.is_null() {
            return None;
        }
        // SAFETY: sockets are never freed.
        let sock: &'static Sock = unsafe { &*found };
        sock.uses.fetch_add(1, AcqRel);
        let sock = SockRef(sock);
        if entry.load(Acquire) == found {
            return Some(sock);
        }
    }
}

/// Makes a socket the descriptor's.
pub fn put(fd: c_int, sock: &SockRef) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    sock.fds.fetch_add(1, AcqRel);
    let kept = sock.clone();
    drop(take(fd));
    entry.store(ptr::from_ref(kept.0).cast_mut(), Release);
    std::mem::forget(kept);
}

/// Takes a descriptor's socket away from it.
pub fn take(fd: c_int) -> Option<SockRef> {
    let found = TABLE.get(fd as usize)?.swap(ptr::null_mut(), AcqRel);
    // SAFETY: never freed; the table's use becomes the caller's.
    let sock = (!found.is_null()).then(|| SockRef(unsafe { &*found }))?;
    sock.fds.fetch_sub(1, AcqRel);
    Some(sock)
}

/// The descriptors of this process that are sockets of ours, for what concerns many.
pub fn each(mut with: impl FnMut(c_int, &SockRef)) {
    for fd in 0..FDS as c_int {
        if !TABLE[fd as usize].load(Relaxed).is_null()
            && let Some(sock) = get(fd)
        {
            with(fd, &sock);
        }
    }
}

/// A socket for a new connection.
pub fn new(stage: Stage, local: SocketAddr, peer: SocketAddr) -> SockRef {
    let reused = FREE.lock().pop();
    let sock = reused.unwrap_or_else(|| {
        let sock: &'static Sock = Box::leak(Box::new(Sock::empty()));
        ALL.lock().push(sock);
        sock
    });
    sock.uses.fetch_add(1, AcqRel);
    // SAFETY: nobody else has it: it was free.
    unsafe {
        *sock.addresses.get() = Some((local, peer));
        let how = if stage == Stage::Meeting { "connected" } else { "accepted" };
        let block = Block::<Connection>::new(&format!("tcp {local} {peer} {how}"), 0);
        block.why.set(Why::NotMet as u64);
        *sock.block.get() = Some(block);
    }
    sock.generation.store(thread::generation(), Relaxed);
    sock.stage.store(stage as u8, Release);
    sock.is_owned.store(true, Release);
    SockRef(sock)
}

/// Locks that must be free in a forked child.
pub fn lock_for_fork() -> impl Sized {
    (ALL.lock(), FREE.lock())
}

/// Before a fork: connections that have not met stay on TCP, because two processes will use them; what has met is known
/// to be shared.
pub fn before_fork() {
    let all = ALL.lock();
    for sock in all.iter().filter(|sock| sock.is_owned.load(Acquire)) {
        sock.is_forked.store(true, SeqCst);
        if sock.stage() != Stage::Met {
            sock.stay(Why::Forked);
        }
    }
}

/// A thread inside of the kernel's TCP.
pub struct InKernel<'a>(&'a AtomicU32);

impl<'a> InKernel<'a> {
    /// Counts one more.
    pub fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(counter)
    }
}

impl Drop for InKernel<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Sock {
    fn empty() -> Self {
        Self {
            uses: AtomicU32::new(0),
            is_owned: AtomicBool::new(false),
            stage: AtomicU8::new(Stage::Tcp as u8),
            meets: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            is_forked: AtomicBool::new(false),
            fds: AtomicU32::new(0),
            meeting_fd: AtomicI32::new(-1),
            is_offered: AtomicBool::new(false),
            tries: AtomicU32::new(0),
            kernel_receivers: AtomicU32::new(0),
            kernel_senders: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            nonblocking: AtomicU8::new(0),
            full_count: AtomicU32::new(0),
            pending_error: AtomicI32::new(0),
            tells_inq: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            addresses: UnsafeCell::new(None),
            link: UnsafeCell::new(None),
            block: UnsafeCell::new(None),
        }
    }

    /// After the last use: everything as in a new one.
    fn end(&self) {
        // SAFETY: nobody else has it.
        let (link, block) = unsafe { ((*self.link.get()).take(), (*self.block.get()).take()) };
        if self.generation.load(Relaxed) == thread::generation() {
            drop(block);
        } else {
            // Its place is the parent's.
            std::mem::forget(block);
        }
        self.close_meeting();
        if let Some(link) = link {
            own_fds::close(link.door);
            own_fds::close(link.peer_door);
        }
        self.stage.store(Stage::Tcp as u8, Release);
        self.meets.store(false, Relaxed);
        self.is_forked.store(false, Relaxed);
        for counter in [
            &self.fds,
            &self.tries,
            &self.kernel_receivers,
            &self.kernel_senders,
            &self.sleepers,
            &self.full_count,
        ] {
            counter.store(0, Relaxed);
        }
        self.nonblocking.store(0, Relaxed);
        self.pending_error.store(0, Relaxed);
        self.tells_inq.store(false, Relaxed);
        self.is_offered.store(false, Relaxed);
        self.looked_ns.store(0, Relaxed);
    }

    /// How far it has come.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            1 => Stage::Accepted,
            2 => Stage::Meeting,
            3 => Stage::Met,
            5 => Stage::Turning,
            _ => Stage::Tcp,
        }
    }

    /// What is shared with the peer, once it was met.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        if self.stage() != Stage::Met {
            return None;
        }
        // SAFETY: written before the stage said so, and not again while there is a use of the socket.
        unsafe { (*self.link.get()).as_ref() }
    }

    /// Its own address and its peer's.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: written before the socket was published.
        unsafe { *self.addresses.get() }
    }

    /// What `farcall explain` shows of it; nothing in a child of its process.
    pub fn shown(&self) -> Option<&Block<Connection>> {
        if self.generation.load(Relaxed) != thread::generation() {
            return None;
        }
        // SAFETY: written before the socket was published.
        unsafe { (*self.block.get()).as_ref() }
    }

    /// Whether it came to this process by a fork.
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

    /// Goes through shared memory from now on. Only inside of [`Sock::while_meeting`].
    pub fn set_met(&self, link: Link) {
        if let Some(shown) = self.shown() {
            shown.why.set(Why::Met as u64);
            shown.ring_bytes.set(link.out.len_bytes() as u64);
        }
        // SAFETY: one thread meets, and the stage does not tell of it yet.
        unsafe { *self.link.get() = Some(link) };
        self.stage.store(Stage::Met as u8, SeqCst);
    }

    /// Runs `turn` while nobody else enters the kernel's TCP with it; nothing happens if one is inside to receive. It
    /// stays as it was unless `turn` says that it has met.
    pub fn while_turning(&self, from: Stage, turn: impl FnOnce() -> Result<(), Why>) -> Result<(), Why> {
        if self.stage.compare_exchange(from as u8, Stage::Turning as u8, SeqCst, Relaxed).is_err() {
            return Ok(());
        }
        let done = if self.kernel_receivers.load(SeqCst) == 0 { turn() } else { Ok(()) };
        let _ = self.stage.compare_exchange(Stage::Turning as u8, from as u8, SeqCst, Relaxed);
        done
    }

    /// How far it has come, after a thread that is turning it is done. In a signal handler that interrupted that thread
    /// it stays [`Stage::Turning`].
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
    pub fn stay(&self, why: Why) {
        self.settled_stage();
        for stage in [Stage::Accepted, Stage::Meeting] {
            if self.stage.compare_exchange(stage as u8, Stage::Tcp as u8, SeqCst, Relaxed).is_ok() {
                self.close_meeting();
                if let Some(shown) = self.shown() {
                    shown.why.set(why as u64);
                }
            }
        }
    }

    /// No longer waits for the accepting end.
    pub fn close_meeting(&self) {
        let fd = self.meeting_fd.swap(-1, AcqRel);
        if fd >= 0 {
            if !self.is_inherited() {
                crate::meet::forget_place(fd);
            }
            own_fds::close(fd);
        }
    }

    /// Ends both rings at the bytes that they have come to: everything later goes by TCP.
    pub fn demote(&self, why: Why) {
        self.stay(why);
        let Some(link) = self.link() else { return };
        if link.out.look().is_closed && link.inn.look().is_closed {
            return;
        }
        link.out.close();
        link.inn.close();
        if let Some(shown) = self.shown() {
            shown.why.set(why as u64);
        }
        own_fds::ring(link.peer_door);
        own_fds::ring(link.door);
    }

    /// Whether both rings have ended and all bytes of the peer's have been received: the kernel knows all the rest.
    pub fn is_over(&self) -> bool {
        let Some(link) = self.link() else { return self.stage() == Stage::Tcp };
        let inn = link.inn.look();
        inn.is_closed
            && inn.unread_bytes == 0
            && link.out.look().is_closed
            && self.pending_error.load(Relaxed) == 0
    }

    /// The kernel says that no more comes from the peer. If it has ended without a word, what it had not received is
    /// lost, which is a reset, as it is in TCP.
    pub fn peer_has_ended(&self, fd: c_int) {
        let Some(link) = self.link() else { return };
        if link.out.look().is_closed && link.inn.look().is_closed {
            return;
        }
        let was_told = link.words.load(link.peer_end, SeqCst) != 0;
        link.out.close();
        link.inn.close();
        if !was_told && link.out.look().unread_bytes > 0 {
            self.pending_error.store(libc::ECONNRESET, SeqCst);
            // From here on the kernel answers as after a reset.
            // SAFETY: no memory is involved.
            unsafe { crate::real::shutdown(fd, libc::SHUT_RDWR) };
        }
        if let Some(shown) = self.shown() {
            shown.why.set(Why::PeerEnded as u64);
        }
    }
}

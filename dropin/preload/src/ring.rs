//! One direction of a connection: bytes from one sender to one receiver, in memory that both map.
//!
//! The word `PRODUCED` contains the number of bytes sent so far, and one bit that ends the ring. The sender publishes
//! bytes by exchanging that word, and either end ends the ring by setting the bit in it. So both agree, at once and
//! without a message, which byte is the last of the ring, and that all later ones use TCP. A peer that is killed at any
//! instruction has published complete bytes or none.
//!
//! A ring begins with a short part of memory, whose few bytes stay in the processor's caches. A sender that finds it
//! full allocates a long part. The word `LONG_FROM` contains the number of the first byte that is in the long part; it
//! is stored before that byte is published. The short part is not used again.
//!
//! The words of a direction that contain its state are described in `switch`.
//!
//! A lock in the same memory serializes the users of each end, because threads and forked processes share a socket. It
//! is held by threads of one program and its children, never across the two ends; the lock of a thread that has exited
//! is taken over.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use libc::iovec;

use crate::memory::{AtomicChange, Memory};
use crate::switch::{Carrier, RingSnapshot};
use crate::{jumps, thread};

/// Bit of `PRODUCED`: the ring has ended.
const CLOSED: u64 = 1 << 63;

const PRODUCED: usize = 0;
const SEND_LOCK: usize = 8;
/// Offset of the word with the number of the first byte in the long part; 0 if none is there.
const LONG_FROM: usize = 32;
/// `true` if the receiver sleeps until there are bytes.
const DATA_SLEEP: usize = 64;
const CONSUMED: usize = 128;
const RECV_LOCK: usize = 136;
/// `true` if the sender sleeps until there is free space.
const SPACE_SLEEP: usize = 192;
/// Bytes of the words of one direction.
pub const WORDS_BYTES: usize = 256;

/// Maximum number of rings of a process that have a long part because of its own sends; the others stay short.
const LONG_RINGS_MAX: usize = 64;
static LONG_RINGS: AtomicUsize = AtomicUsize::new(0);

/// Range of a part of a ring in the memory.
#[derive(Clone, Copy)]
pub struct Part {
    /// Its first byte.
    pub at: usize,
    /// Bytes.
    pub len_bytes: usize,
}

/// One direction.
pub struct Ring {
    mem: Memory,
    words: usize,
    short: Part,
    long: Part,
    /// `true` if this process has allocated the long part.
    has_long: AtomicBool,
    /// `true` if it is counted in [`LONG_RINGS`].
    took_long: AtomicBool,
}

/// A lock of one end of a ring, held.
pub struct RingLock<'a> {
    ring: &'a Ring,
    at: usize,
    /// Lock that the thread had before.
    before: Option<jumps::HeldLock>,
}

impl Drop for RingLock<'_> {
    fn drop(&mut self) {
        self.ring.mem.store(self.at, 0, Release);
        jumps::unlock(self.before);
    }
}

impl Ring {
    /// Creates the direction whose control words begin at `words`; of its parts the short one is allocated.
    pub fn new(mem: Memory, words: usize, short: Part, long: Part) -> Self {
        Self { mem, words, short, long, has_long: AtomicBool::new(false), took_long: AtomicBool::new(false) }
    }

    fn load(&self, word: usize) -> u64 {
        self.mem.load(self.words + word, SeqCst)
    }

    fn update(&self, word: usize, change: AtomicChange) -> u64 {
        self.mem.update(self.words + word, change)
    }

    /// State between two counts; a peer whose counts are invalid has sent nothing and ended. `long_from` was loaded
    /// after `produced`.
    fn snapshot_of(&self, produced: u64, consumed: u64, long_from: Option<u64>) -> RingSnapshot {
        let unread_bytes = (produced & !CLOSED).wrapping_sub(consumed);
        let capacity_bytes = match long_from {
            None => 0,
            Some(0) => self.short.len_bytes,
            Some(_) => self.short.len_bytes + self.long.len_bytes,
        };
        if unread_bytes > capacity_bytes as u64 {
            return RingSnapshot { unread_bytes: 0, is_closed: true };
        }
        RingSnapshot { unread_bytes, is_closed: produced & CLOSED != 0 }
    }

    /// Returns the number of the first byte in the long part; `None` if the peer announced one without allocating the
    /// part.
    fn long_from(&self) -> Option<u64> {
        let from = self.mem.load(self.words + LONG_FROM, Acquire);
        if from != 0 && !self.has_long.load(Relaxed) {
            if !self.mem.populate(self.long.at, self.long.len_bytes) {
                return None;
            }
            self.has_long.store(true, Relaxed);
        }
        Some(from)
    }

    /// Returns the number of bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.load(PRODUCED) & !CLOSED
    }

    /// Returns the length of the part in use and its free space, in bytes.
    fn space(&self, produced: u64, consumed: u64, long_from: u64) -> (u64, u64) {
        let (part, unread_from) = match long_from {
            0 => (self.short, consumed),
            // Unread bytes in the short part take no space of the long one.
            from => (self.long, consumed.max(from)),
        };
        let len_bytes = part.len_bytes as u64;
        (len_bytes, len_bytes.saturating_sub((produced & !CLOSED).saturating_sub(unread_from)))
    }

    /// Returns whether enough space is free to notify a sender.
    pub fn has_space(&self) -> bool {
        let consumed = self.load(CONSUMED);
        let (len_bytes, space_bytes) = self.space(self.load(PRODUCED), consumed, self.load(LONG_FROM));
        space_bytes >= len_bytes / 3
    }

    /// Returns the length of the part in use in bytes.
    pub fn len_bytes(&self) -> usize {
        if self.load(LONG_FROM) == 0 { self.short.len_bytes } else { self.long.len_bytes }
    }

    /// Called by the sender, which holds its lock and has `left_bytes` bytes without space: uses the long part from
    /// now on if there is memory for it. Returns whether it does.
    pub fn lengthen(&self, left_bytes: usize) -> bool {
        let produced = self.sent_bytes();
        if left_bytes == 0 || produced == 0 || self.load(LONG_FROM) != 0 {
            return false;
        }
        if LONG_RINGS.fetch_add(1, Relaxed) >= LONG_RINGS_MAX
            || !self.mem.populate(self.long.at, self.long.len_bytes)
        {
            LONG_RINGS.fetch_sub(1, Relaxed);
            return false;
        }
        self.took_long.store(true, Relaxed);
        self.has_long.store(true, Relaxed);
        self.mem.store(self.words + LONG_FROM, produced, SeqCst);
        true
    }

    /// Locks the sender's end; `None` inside of a signal handler that interrupted the thread that holds the lock.
    pub fn lock_sender(&self) -> Option<RingLock<'_>> {
        self.lock(SEND_LOCK)
    }

    /// Locks the receiver's end, like [`Ring::lock_sender`].
    pub fn lock_receiver(&self) -> Option<RingLock<'_>> {
        self.lock(RECV_LOCK)
    }

    fn lock(&self, word: usize) -> Option<RingLock<'_>> {
        let (at, own) = (self.words + word, thread::id());
        let before = jumps::lock(&self.mem, at);
        let mut tries = 0_u32;
        loop {
            if self.mem.compare_exchange(at, 0, own) {
                return Some(RingLock { ring: self, at, before });
            }
            let holder = self.mem.load(at, Relaxed);
            if holder == own {
                jumps::unlock(before);
                return None;
            }
            tries += 1;
            if tries < 100 {
                thread::spin();
                continue;
            }
            thread::pause();
            if tries.is_multiple_of(64) && holder != 0 && !thread::is_alive(holder) {
                self.mem.compare_exchange(at, holder, 0);
            }
        }
    }

    /// Copies as many bytes as there is space for, from byte `from_byte` of the caller's buffers on, and publishes
    /// them. Returns their number; `None` if the ring has ended, and then no byte was sent.
    ///
    /// # Safety
    /// The sender's lock is held; the buffers can be read.
    pub unsafe fn push(&self, buffers: &[iovec], from_byte: usize) -> Option<usize> {
        let consumed = self.mem.load(self.words + CONSUMED, Acquire);
        let produced = self.mem.load(self.words + PRODUCED, Acquire);
        let long_from = self.long_from()?;
        if self.snapshot_of(produced, consumed, Some(long_from)).is_closed {
            return None;
        }
        let (_, space_bytes) = self.space(produced, consumed, long_from);
        // SAFETY: the buffers can be read, by this function's contract, and `each_segment` passes ranges inside of
        // them; `copy` passes ranges inside of a part of the ring, each no longer than the one of the buffers.
        let len = unsafe {
            each_segment(buffers, from_byte, space_bytes as usize, |segment, len, done| {
                self.copy(produced + done as u64, len, long_from, |offset_in_memory, at, len| {
                    self.mem.copy_in(offset_in_memory, segment.add(at), len)
                });
            })
        };
        let change = AtomicChange::Swap { if_equal: produced, new: produced + len as u64 };
        // The other end may have ended the ring in the meantime: then these bytes were never sent.
        (len == 0 || self.update(PRODUCED, change) == produced).then_some(len)
    }

    /// Copies available bytes into the caller's buffers, from byte `from_byte` of these on; or discards them, depending
    /// on `mode`.
    ///
    /// # Safety
    /// The receiver's lock is held; the buffers can be written.
    pub unsafe fn pull(&self, buffers: &[iovec], from_byte: usize, mode: ReceiveMode) -> usize {
        let consumed = self.mem.load(self.words + CONSUMED, Acquire);
        let produced = self.mem.load(self.words + PRODUCED, Acquire);
        let Some(long_from) = self.long_from() else { return 0 };
        let available = self.snapshot_of(produced, consumed, Some(long_from)).unread_bytes as usize;
        // SAFETY: the buffers can be written, by this function's contract, and `each_segment` passes ranges inside of
        // them; `copy` passes ranges inside of a part of the ring, each no longer than the one of the buffers.
        let len = unsafe {
            each_segment(buffers, from_byte, available, |segment, len, done| {
                if mode != ReceiveMode::Discard {
                    self.copy(consumed + done as u64, len, long_from, |offset_in_memory, at, len| {
                        self.mem.copy_out(offset_in_memory, segment.add(at), len)
                    });
                }
            })
        };
        if mode != ReceiveMode::Peek && len > 0 {
            self.update(CONSUMED, AtomicChange::Add(len as u64));
        }
        len
    }

    /// Calls `with` for each range of memory that contains some of `len` bytes from a count on: its offset, the number
    /// of bytes before it, its length. The peer can change `long_from`: every range is inside of a part, for any value
    /// of it.
    fn copy(&self, count: u64, len: usize, long_from: u64, mut with: impl FnMut(usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = (count & !CLOSED).wrapping_add(done as u64);
            let (part, offset, until_long) = match at.checked_sub(long_from) {
                Some(offset) if long_from != 0 => (self.long, offset, u64::MAX),
                None => (self.short, at, long_from - at),
                Some(_) => (self.short, at, u64::MAX),
            };
            let offset = (offset % part.len_bytes as u64) as usize;
            let stretch =
                (len - done).min(part.len_bytes - offset).min(until_long.try_into().unwrap_or(usize::MAX));
            with(part.at + offset, done, stretch);
            done += stretch;
        }
    }

    /// Announces that the receiver sleeps; it must poll once more afterwards.
    pub fn arm_data(&self) {
        self.mem.store(self.words + DATA_SLEEP, 1, SeqCst);
    }

    /// Returns whether the sender wakes the receiver when it sends.
    pub fn is_data_armed(&self) -> bool {
        self.load(DATA_SLEEP) != 0
    }

    /// Announces that the sender sleeps; it must poll once more afterwards.
    pub fn arm_space(&self) {
        self.mem.store(self.words + SPACE_SLEEP, 1, SeqCst);
    }

    /// Called after bytes were sent: returns whether the receiver must be woken, `true` to one caller only.
    pub fn takes_data_wake(&self) -> bool {
        self.load(DATA_SLEEP) != 0 && self.update(DATA_SLEEP, AtomicChange::Swap { if_equal: 1, new: 0 }) == 1
    }

    /// Called after bytes were received: returns whether the sender must be woken.
    pub fn takes_space_wake(&self) -> bool {
        self.load(SPACE_SLEEP) != 0
            && self.has_space()
            && self.update(SPACE_SLEEP, AtomicChange::Swap { if_equal: 1, new: 0 }) == 1
    }
}

impl Carrier for Ring {
    fn snapshot(&self) -> RingSnapshot {
        // In this order: bytes that arrive in between are counted by the next snapshot.
        let consumed = self.load(CONSUMED);
        self.snapshot_of(self.load(PRODUCED), consumed, self.long_from())
    }

    fn end(&self) {
        self.mem.fetch_or(self.words + PRODUCED, CLOSED, SeqCst);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.took_long.load(Relaxed) {
            LONG_RINGS.fetch_sub(1, Relaxed);
        }
    }
}

/// Treatment of bytes that are received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReceiveMode {
    /// They are consumed.
    Consume,
    /// They remain in the ring (MSG_PEEK).
    Peek,
    /// They are consumed without being copied (MSG_TRUNC).
    Discard,
}

/// Calls `with` for each segment of the caller's buffers, from byte `from_byte` on, up to `max` bytes: its address, its
/// length, the number of bytes before it. Returns the number of bytes.
///
/// # Safety
/// The buffers are the program's.
unsafe fn each_segment(
    buffers: &[iovec],
    from_byte: usize,
    max: usize,
    mut with: impl FnMut(*mut u8, usize, usize),
) -> usize {
    let (mut skip, mut done) = (from_byte, 0);
    for buffer in buffers {
        if skip >= buffer.iov_len {
            skip -= buffer.iov_len;
            continue;
        }
        let len = (buffer.iov_len - skip).min(max - done);
        if len == 0 {
            break;
        }
        // SAFETY: inside of the buffer.
        with(unsafe { buffer.iov_base.cast::<u8>().add(skip) }, len, done);
        (skip, done) = (0, done + len);
    }
    done
}

//! Two processes that write a cache line each in turn: the floor under every figure on one host.

use super::peer::{Peer, PeerError, PeerTask};
use super::{BaselinePlan, PAYLOAD_LEN_BYTES};
use crate::measure::{RoundTrips, ping_pong};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = PAYLOAD_LEN_BYTES / 8;
/// After so many fruitless polls the client asks whether its peer is still alive.
const POLLS_PER_CHECK: u32 = 1 << 20;

/// One direction: a line of payload whose last word is the number of the message. Two lines apart from the other
/// direction, because processors fetch lines in pairs.
#[repr(C, align(128))]
struct Line {
    words: [AtomicU64; WORDS],
}

/// Both directions, in shared memory.
#[repr(C)]
struct Lines {
    request: Line,
    reply: Line,
}

impl Line {
    /// Writes message `number`; its last word is stored last.
    #[inline]
    fn write(&self, number: u64) {
        for word in &self.words[..WORDS - 1] {
            word.store(number, Ordering::Relaxed);
        }
        self.words[WORDS - 1].store(number, Ordering::Release);
    }

    #[inline]
    fn has(&self, number: u64) -> bool {
        self.words[WORDS - 1].load(Ordering::Acquire) == number
    }

    /// Whether the whole payload belongs to message `number`.
    #[inline]
    fn is_whole(&self, number: u64) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == number)
    }
}

/// The mapping of both lines.
struct Mapping {
    lines: NonNull<Lines>,
}

impl Mapping {
    fn of(memory: &OwnedFd) -> Result<Self, PeerError> {
        let stat = fstat(memory).map_err(PeerError::system("fstat"))?;
        if stat.st_size < size_of::<Lines>() as i64 {
            return Err(PeerError::Task("naming memory that is too small"));
        }
        // SAFETY: a fresh shared mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Lines>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                memory,
                0,
            )
        }
        .map_err(PeerError::system("mmap"))?;
        let lines = NonNull::new(address.cast()).ok_or(PeerError::Ended)?;
        Ok(Self { lines })
    }

    fn lines(&self) -> &Lines {
        // SAFETY: the mapping is as long as `Lines`, page-aligned, lives as long as `self`, and holds only atomics.
        unsafe { self.lines.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `of` with this length; no reference outlives `self`.
        let _ = unsafe { munmap(self.lines.as_ptr().cast(), size_of::<Lines>()) };
    }
}

pub(super) fn round_trips(plan: &BaselinePlan) -> Result<RoundTrips, PeerError> {
    let memory =
        memfd_create("farcall-ping-pong", MemfdFlags::CLOEXEC).map_err(PeerError::system("memfd_create"))?;
    ftruncate(&memory, size_of::<Lines>() as u64).map_err(PeerError::system("ftruncate"))?;
    let mapping = Mapping::of(&memory)?;
    let mut peer = plan.launcher.start(PeerTask::SharedLine, plan.server_core, &[memory.as_fd()])?;
    let Lines { request, reply } = mapping.lines();
    ping_pong(plan.warm_up, plan.duration, |number| {
        request.write(number);
        wait_for(reply, number, &mut peer)?;
        if reply.is_whole(number) { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}

#[inline]
fn wait_for(reply: &Line, number: u64, peer: &mut Peer) -> Result<(), PeerError> {
    loop {
        for _ in 0..POLLS_PER_CHECK {
            if reply.has(number) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if !peer.is_alive() {
            return Err(PeerError::Ended);
        }
    }
}

/// The peer: answers message after message until it is killed.
pub(super) fn answer(
    memory: &OwnedFd,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    let mapping = Mapping::of(memory)?;
    ready()?;
    let Lines { request, reply } = mapping.lines();
    let mut number = 1;
    loop {
        if request.has(number) && request.is_whole(number) {
            reply.write(number);
            number += 1;
        }
        std::hint::spin_loop();
    }
}

//! Two processes that each write a cache line in turn: the lower limit of every latency on one host.

use super::task::{Answer, PAYLOAD_LEN_BYTES};
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, Peer, PeerError};
use farcall_shm::{Mapping, Segment};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = PAYLOAD_LEN_BYTES / 8;
/// Number of empty polls after which the client checks whether its peer is still alive.
const POLLS_PER_CHECK: u32 = 1 << 20;

/// One direction: a line of payload whose last word is the number of the message. The two directions are two lines
/// apart, because processors fetch lines in pairs.
#[repr(C, align(128))]
struct Line {
    words: [AtomicU64; WORDS],
}

/// Returns the lines of requests and of replies in a mapping that contains both.
fn lines(mapping: &Mapping) -> &[Line; 2] {
    assert!(mapping.len_bytes() >= size_of::<[Line; 2]>());
    // SAFETY: the mapping is page-aligned and at least as long as the array, as asserted above. It exists as long as
    // the borrow of `mapping`, and the array contains only atomics, which other processes may modify concurrently.
    unsafe { &*mapping.base().cast() }
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

    /// Returns whether the complete payload belongs to message `number`.
    #[inline]
    fn is_whole(&self, number: u64) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == number)
    }
}

pub(super) fn round_trips(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let segment = Segment::create("farcall-ping-pong", size_of::<[Line; 2]>())?;
    let mut peer = plan.launcher.start(&Answer::SharedLine, plan.server_core, &[segment.fd()])?;
    let mapping = Segment::map_peer_segment(segment.fd(), 0, size_of::<[Line; 2]>(), true)?;
    let [request, reply] = lines(&mapping);
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

/// Runs the peer: replies to messages until it is killed.
pub(super) fn answer(
    memory: &OwnedFd,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    let mapping = Segment::map_peer_segment(memory.as_fd(), 0, size_of::<[Line; 2]>(), true)?;
    let [request, reply] = lines(&mapping);
    ready()?;
    let mut number = 1;
    loop {
        if request.has(number) && request.is_whole(number) {
            reply.write(number);
            number += 1;
        }
        std::hint::spin_loop();
    }
}

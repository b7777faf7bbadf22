//! Models of a ring and of its wake-ups, checked by loom: every interleaving, and every value that a load may see.
//!
//! The ring is the library's own file, over loom's memory. Bytes are in cells that report concurrent accesses. An end
//! acts in the order of `io` and `poll`: after an empty poll it announces that it sleeps, polls again, and only then
//! sleeps on the doorbell.
//!
//! loom takes sequentially consistent accesses for acquiring and releasing ones. So each store and each change has a
//! fence behind it, which no later load passes; a store that is none has none.
#![expect(unsafe_code, reason = "the ring's own contract, and cells that loom watches")]

#[allow(dead_code)]
#[path = "../src/ring.rs"]
mod ring;
#[allow(dead_code)]
#[path = "../src/switch.rs"]
mod switch;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::iovec;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex};

use memory::Memory;
use ring::{Part, ReceiveMode, Ring, WORDS_BYTES};
use switch::Switch;

/// A sender is notified when a third of it is free: one byte.
const SHORT_BYTES: usize = 3;
const LONG_BYTES: usize = 4;

/// Replaces the library's module `memory`.
mod memory {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, fence};

    pub use farcall_shm::AtomicChange;

    struct Shared {
        words: Vec<AtomicU64>,
        bytes: Vec<UnsafeCell<u8>>,
    }

    // SAFETY: loom reports concurrent accesses to the cells.
    unsafe impl Sync for Shared {}
    // SAFETY: loom reports concurrent accesses to the cells, from whichever thread.
    unsafe impl Send for Shared {}

    #[derive(Clone)]
    pub struct Memory(Arc<Shared>);

    impl Memory {
        pub fn new(words_bytes: usize, bytes: usize) -> Self {
            let words = (0..words_bytes / 8).map(|_| AtomicU64::new(0)).collect();
            Self(Arc::new(Shared { words, bytes: (0..bytes).map(|_| UnsafeCell::new(0)).collect() }))
        }

        pub fn load(&self, at: usize, order: Ordering) -> u64 {
            self.0.words[at / 8].load(order)
        }

        pub fn store(&self, at: usize, value: u64, order: Ordering) {
            self.0.words[at / 8].store(value, order);
            if order == Ordering::SeqCst {
                fence(Ordering::SeqCst);
            }
        }

        pub fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
            assert_eq!(order, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let old = self.0.words[at / 8].fetch_or(bits, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            old
        }

        pub fn compare_exchange(&self, at: usize, current: u64, new: u64) -> bool {
            let swapped =
                self.0.words[at / 8].compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed);
            swapped.is_ok()
        }

        pub fn update(&self, at: usize, change: AtomicChange) -> u64 {
            fence(Ordering::SeqCst);
            let word = &self.0.words[at / 8];
            let old = match change {
                AtomicChange::Add(value) => word.fetch_add(value, Ordering::AcqRel),
                AtomicChange::Swap { if_equal, new } => {
                    match word.compare_exchange(if_equal, new, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(old) | Err(old) => old,
                    }
                }
            };
            fence(Ordering::SeqCst);
            old
        }

        pub fn populate(&self, _at: usize, _len_bytes: usize) -> bool {
            true
        }

        /// # Safety
        /// As in the library: the range at the pointer is valid.
        pub unsafe fn copy_in(&self, at: usize, from: *const u8, len_bytes: usize) {
            for offset in 0..len_bytes {
                let cell = &self.0.bytes[at - super::WORDS_BYTES + offset];
                // SAFETY: the contract of this function (# Safety); loom reports concurrent accesses.
                cell.with_mut(|byte| unsafe { *byte = *from.add(offset) });
            }
        }

        /// # Safety
        /// As in the library: the range at the pointer is valid.
        pub unsafe fn copy_out(&self, at: usize, to: *mut u8, len_bytes: usize) {
            for offset in 0..len_bytes {
                let cell = &self.0.bytes[at - super::WORDS_BYTES + offset];
                // SAFETY: loom reports concurrent accesses to the cells, from whichever thread.
                cell.with(|byte| unsafe { *to.add(offset) = *byte });
            }
        }
    }
}

/// Replaces the library's module `thread`: no thread exits in a model.
mod thread {
    use std::cell::Cell;

    loom::thread_local! {
        static ID: Cell<u64> = Cell::new(1);
    }

    pub fn set_id(id: u64) {
        ID.with(|own| own.set(id));
    }

    pub fn id() -> u64 {
        ID.with(Cell::get)
    }

    pub fn spin() {
        loom::thread::yield_now();
    }

    pub fn pause() {
        loom::thread::yield_now();
    }

    pub fn is_alive(_id: u64) -> bool {
        true
    }
}

/// Replaces the library's module `jumps`: programs of the model do not jump.
mod jumps {
    use crate::memory::Memory;

    pub type HeldLock = ();

    pub fn lock(_mem: &Memory, _at: usize) -> Option<HeldLock> {
        None
    }

    pub fn unlock(_before: Option<HeldLock>) {}
}

/// An eventfd.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.bell.notify_one();
    }

    /// Sleeps until it is notified, and drains it.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.bell.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A ring, and the doorbells of its sender and its receiver.
struct World {
    ring: Switch<Ring>,
    sender: Doorbell,
    receiver: Doorbell,
}

/// Order in which an end announces its sleep and polls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeps {
    AfterAnotherLook,
    /// Wrong: bytes that arrived before the announcement notify no thread.
    AtOnce,
}

/// Held by tests with long rings, which a process counts.
static LENGTHENS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Action of a sender that finds no space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    Waits,
    Lengthens,
}

impl World {
    fn new() -> Arc<Self> {
        let memory = Memory::new(WORDS_BYTES, SHORT_BYTES + LONG_BYTES);
        let short = Part { at: WORDS_BYTES, len_bytes: SHORT_BYTES };
        let long = Part { at: WORDS_BYTES + SHORT_BYTES, len_bytes: LONG_BYTES };
        let ring = Switch::new(Ring::new(memory.clone(), 0, short, long), memory, 0);
        Arc::new(Self { ring, sender: Doorbell::default(), receiver: Doorbell::default() })
    }

    /// `None`: the ring has ended.
    fn push(&self, bytes: &[u8]) -> Option<usize> {
        let buffer = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the slice outlives the call; one thread sends, or it holds the lock.
        unsafe { self.ring.push(&[buffer], 0) }
    }

    fn pull(&self, into: &mut [u8]) -> usize {
        let buffer = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: the slice outlives the call; one thread receives.
        unsafe { self.ring.pull(&[buffer], 0, ReceiveMode::Consume) }
    }

    /// `send_in_ring`, and `poll::sleep` where it waits.
    fn send(&self, all: &[u8], sleeps: Sleeps, when_full: WhenFull) {
        let mut done = 0;
        loop {
            let pushed = self.push(&all[done..]).expect("no thread ends the ring");
            done += pushed;
            if done < all.len() && when_full == WhenFull::Lengthens {
                self.ring.lengthen(all.len() - done);
            }
            if pushed > 0 && self.ring.takes_data_wake() {
                self.receiver.ring();
            }
            if done == all.len() {
                return;
            }
            self.ring.arm_space();
            if sleeps == Sleeps::AfterAnotherLook && self.ring.has_space() {
                continue;
            }
            self.sender.sleep();
        }
    }

    /// `receive_paired`, and `poll::sleep` where it waits.
    fn receive(&self, all: &[u8], sleeps: Sleeps) {
        let (mut done, mut bytes) = (0, [0; SHORT_BYTES + LONG_BYTES]);
        while done < all.len() {
            let got = self.pull(&mut bytes);
            assert_eq!(bytes[..got], all[done..done + got]);
            done += got;
            if got > 0 {
                if self.ring.takes_space_wake() {
                    self.sender.ring();
                }
                continue;
            }
            self.ring.arm_data();
            if sleeps == Sleeps::AfterAnotherLook && self.ring.snapshot().unread_bytes > 0 {
                continue;
            }
            self.receiver.sleep();
        }
    }
}

/// Checks every interleaving with at most `interruptions_max` preemptions of a thread that could have continued.
fn check(interruptions_max: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(interruptions_max));
    builder.check(model);
}

fn transfer_bytes(len_bytes: u8, sender: Sleeps, receiver: Sleeps, when_full: WhenFull) {
    let all: Vec<u8> = (1..=len_bytes).collect();
    let (world, sent) = (World::new(), all.clone());
    let other = Arc::clone(&world);
    let sends = loom::thread::spawn(move || other.send(&sent, sender, when_full));
    world.receive(&all, receiver);
    sends.join().unwrap();
    let is_long = world.ring.len_bytes() == LONG_BYTES;
    assert!(when_full == WhenFull::Lengthens || !is_long);
}

/// One byte more than there is space for, so that both ends may have to sleep.
#[test]
fn wakes_sleepers_for_every_byte_and_free_space() {
    check(3, || transfer_bytes(4, Sleeps::AfterAnotherLook, Sleeps::AfterAnotherLook, WhenFull::Waits));
}

/// A few bytes in the long part, and more than there is space for in both: the receiver is in the short one, on the
/// border or in the long one.
#[test]
fn keeps_byte_order_when_a_ring_becomes_longer() {
    let _alone = LENGTHENS.lock();
    for len_bytes in [5, 9] {
        check(3, move || {
            transfer_bytes(
                len_bytes,
                Sleeps::AfterAnotherLook,
                Sleeps::AfterAnotherLook,
                WhenFull::Lengthens,
            );
        });
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn finds_a_receiver_that_does_not_poll_again() {
    check(3, || transfer_bytes(1, Sleeps::AfterAnotherLook, Sleeps::AtOnce, WhenFull::Waits));
}

#[test]
#[should_panic(expected = "deadlock")]
fn finds_a_sender_that_does_not_poll_again() {
    check(3, || transfer_bytes(4, Sleeps::AtOnce, Sleeps::AfterAnotherLook, WhenFull::Waits));
}

/// The thread that ends a ring and the sender agree on its last byte.
#[test]
fn ends_a_ring_at_one_byte_for_both_ends() {
    check(4, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let sends = loom::thread::spawn(move || [1, 2].iter().filter_map(|byte| other.push(&[*byte])).sum());
        world.ring.end();
        let mut bytes = [0; SHORT_BYTES];
        let got = world.pull(&mut bytes);
        assert_eq!(bytes[..got], [1, 2][..got]);
        let accepted: usize = sends.join().unwrap();
        assert_eq!((accepted as u64, got), (world.ring.sent_bytes(), accepted));
        assert_eq!(world.pull(&mut bytes), 0);
        assert!(world.ring.snapshot().is_closed && world.push(&[3]).is_none());
    });
}

/// A byte by TCP, then one in a ring that ends at once, while the receiver checks which of them is next.
#[test]
fn receives_bytes_by_tcp_before_those_of_a_ring_that_ends() {
    check(4, || {
        let world = World::new();
        let in_kernel = Arc::new(AtomicU64::new(0));
        let (other, kernel) = (Arc::clone(&world), Arc::clone(&in_kernel));
        let sends = loom::thread::spawn(move || {
            kernel.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            other.ring.begin(1);
            assert_eq!(other.push(&[2]), Some(1));
            other.ring.end();
        });
        let waiting_bytes = || {
            fence(Ordering::SeqCst);
            in_kernel.load(Ordering::SeqCst)
        };
        let before_bytes = world.ring.bytes_before(waiting_bytes);
        let is_next = before_bytes == 0 && world.ring.is_reached(0);
        assert!(!is_next || world.ring.snapshot().unread_bytes == 0, "the byte of the ring came first");
        sends.join().unwrap();
        assert_eq!(world.ring.bytes_before(waiting_bytes), 1);
        world.ring.add_read_by_tcp(1);
        assert_eq!(world.ring.bytes_before(waiting_bytes), 0);
        let mut bytes = [0; 1];
        assert!(world.ring.is_reached(0) && world.pull(&mut bytes) == 1 && bytes == [2]);
    });
}

/// A limited number of rings of a process becomes longer; another one does when one of them is dropped.
#[test]
fn limits_the_long_rings_of_a_process() {
    let _alone = LENGTHENS.lock();
    check(0, || {
        let fill = || {
            let world = World::new();
            world.push(&[1]);
            world
        };
        let mut worlds: Vec<_> = (0..=64).map(|_| fill()).collect();
        let lengthened = worlds.iter().filter(|world| world.ring.lengthen(1)).count();
        assert_eq!((lengthened, worlds[64].ring.len_bytes()), (64, SHORT_BYTES));
        worlds.remove(0);
        assert!(worlds[63].ring.lengthen(1));
    });
}

/// Threads that share an end use it one after the other.
#[test]
fn serializes_two_senders() {
    check(3, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let send = |world: &World, byte: u8| {
            thread::set_id(u64::from(byte));
            let held = world.ring.lock_sender().expect("another thread holds it");
            assert_eq!(world.push(&[byte]), Some(1));
            drop(held);
        };
        let sends = loom::thread::spawn(move || send(&other, 7));
        send(&world, 8);
        sends.join().unwrap();
        let mut bytes = [0; SHORT_BYTES];
        assert_eq!(world.pull(&mut bytes), 2);
        bytes[..2].sort_unstable();
        assert_eq!(bytes[..2], [7, 8]);
    });
}

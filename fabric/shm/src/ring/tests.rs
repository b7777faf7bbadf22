//! Models of the ring: what the consumer reads under every interleaving and every reordering that the orderings allow.
//!
//! The models were checked to fail: with the tag stored relaxed, with the head stored or loaded relaxed, and with the
//! word ahead not cleared.
//!
//! loom does not let a load see a store that its own thread executes later, so an overwrite of a payload that is being
//! read changes no value. Each slot therefore has a cell that is accessed together with it: loom reports accesses of
//! the cell that are not ordered.

#![cfg(loom)]

use loom::model::Builder;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

use super::*;
use crate::SharedMem;
use crate::sync::atomic::Ordering::Relaxed;

const SLOTS: u64 = 8;
const LAYOUT: Layout = Layout { ring_slots: SLOTS as u32, rq_depth: 1, recv_sge: 1, shared: false };

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(2), 100_000);
    builder.check(model);
}

fn memory() -> SharedMem {
    SharedMem::model(LAYOUT.ring_at() + 8 * SLOT_BYTES)
}

/// Messages alternate between two slots and one, so that payload of one lap lies where the next has headers.
const fn len_of(n: u32) -> usize {
    if n.is_multiple_of(2) { 16 } else { 0 }
}

/// Returns the value of a payload word: the header that its slot would have as a record of the next lap.
fn disguised(position: u64) -> u64 {
    tag(position + 1 + SLOTS) | u64::from(Kind::WriteImm as u8) << TAG_BITS
}

/// Accesses to the slots, tracked by loom.
#[derive(Clone)]
struct Slots(Arc<Vec<UnsafeCell<()>>>);

// SAFETY: producer and consumer never access the same slot at once, as the models are to show; loom checks every
// access.
unsafe impl Send for Slots {}

impl Slots {
    fn new() -> Self {
        Self(Arc::new((0..SLOTS).map(|_| UnsafeCell::new(())).collect()))
    }

    fn at(&self, position: u64, count: u64) -> impl Iterator<Item = &UnsafeCell<()>> {
        (position..position + count).map(|at| &self.0[(at % SLOTS) as usize])
    }
}

fn produce(producer: &mut Producer, slots: &Slots, n: u32) {
    let len = len_of(n);
    let at = producer.payload_at();
    slots.at(producer.position(), slots_for(len)).for_each(|slot| slot.with_mut(|_| ()));
    let word = disguised(producer.position()).to_le_bytes();
    producer.memory().copy_in(at, &[word, word].concat()[..len]);
    producer.publish(Kind::Send, 0, len as u32, n, len);
}

/// Consumes the available records; checks their order and length, and that the payload belongs to the record.
fn consume(consumer: &mut Consumer, slots: &Slots, next: &mut u32) {
    while let Some(record) = consumer.peek().expect("the producer writes no garbage") {
        assert_eq!((record.kind, record.imm, record.len_bytes as usize), (Kind::Send, *next, len_of(*next)));
        if record.len_bytes > 0 {
            let got = consumer.memory().load(record.payload_at, Relaxed);
            assert_eq!(got, consumer.memory().load(record.payload_at + 8, Relaxed), "half a payload");
            assert_ne!(got, 0, "payload not there yet");
        }
        let position = ((record.payload_at - RECORD_HEADER_BYTES - LAYOUT.ring_at()) / SLOT_BYTES) as u64;
        slots.at(position, slots_for(len_of(*next))).for_each(|slot| slot.with(|_| ()));
        consumer.advance(&record);
        *next += 1;
    }
    consumer.publish_head();
}

/// The producer tries to send `total` times, concurrently with a consumer, and then stops forever. The first `before`
/// messages have been consumed already, so that laps overlap.
fn stream(before: u32, total: u32) {
    check(move || {
        let (mem, slots) = (memory(), Slots::new());
        let (mut consumer, mut producer) = (Consumer::new(mem.clone(), &LAYOUT), Producer::new(mem, &LAYOUT));
        let theirs = slots.clone();
        let mut next = 0;
        for n in 0..before {
            assert!(producer.has_room(len_of(n), 0));
            produce(&mut producer, &slots, n);
            consume(&mut consumer, &slots, &mut next);
        }
        let producer = loom::thread::spawn(move || {
            let mut sent = before;
            for _ in 0..total {
                // The producer does not wait for space.
                if producer.has_room(len_of(sent), 0) {
                    produce(&mut producer, &theirs, sent);
                    sent += 1;
                }
            }
            sent
        });
        consume(&mut consumer, &slots, &mut next);
        consume(&mut consumer, &slots, &mut next);
        let sent = producer.join().unwrap();
        consume(&mut consumer, &slots, &mut next);
        assert_eq!(next, sent, "published and not found, or found and not published");
    });
}

#[test]
fn messages_come_whole_and_in_order_across_the_end() {
    for before in 0..9 {
        stream(before, 3);
    }
}

#[test]
fn a_producer_that_stops_leaves_nothing_half_done() {
    for total in 0..3 {
        stream(5, total);
    }
}

/// A producer that stops inside a record, after writing the payload and before the header word.
#[test]
fn an_unpublished_payload_is_not_seen() {
    check(|| {
        let (mem, slots) = (memory(), Slots::new());
        let mut consumer = Consumer::new(mem.clone(), &LAYOUT);
        let theirs = slots.clone();
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::new(mem, &LAYOUT);
            produce(&mut producer, &theirs, 0);
            assert!(producer.has_room(16, 0));
            let at = producer.payload_at();
            producer.memory().copy_in(at, &[0xFF; 16]);
        });
        let mut next = 0;
        consume(&mut consumer, &slots, &mut next);
        producer.join().unwrap();
        consume(&mut consumer, &slots, &mut next);
        assert_eq!(next, 1);
    });
}

#[test]
fn a_lagging_head_only_means_less_room() {
    check(|| {
        let (mem, slots) = (memory(), Slots::new());
        let (mut consumer, mut producer) = (Consumer::new(mem.clone(), &LAYOUT), Producer::new(mem, &LAYOUT));
        let theirs = slots.clone();
        let mut sent = 0;
        while producer.has_room(len_of(sent), 0) {
            produce(&mut producer, &slots, sent);
            sent += 1;
        }
        assert!(producer.position() < SLOTS, "one slot is kept for the word cleared ahead");
        // Increments of a common counter, which order no memory, make loom explore all interleavings (see `wc_ring`).
        let turns = Arc::new(AtomicU64::new(0));
        let drain = {
            let turns = turns.clone();
            loom::thread::spawn(move || {
                let mut next = 0;
                turns.fetch_add(1, Relaxed);
                consume(&mut consumer, &theirs, &mut next);
                turns.fetch_add(1, Relaxed);
                (consumer, next)
            })
        };
        for _ in 0..2 {
            turns.fetch_add(1, Relaxed);
            if producer.has_room(len_of(sent), 0) {
                produce(&mut producer, &slots, sent);
                sent += 1;
            }
        }
        let (mut consumer, mut next) = drain.join().unwrap();
        consume(&mut consumer, &slots, &mut next);
        assert_eq!(next, sent);
    });
}

#[test]
fn a_ring_with_little_in_it_stays_at_its_beginning() {
    check(|| {
        let (mem, slots) = (memory(), Slots::new());
        let (mut consumer, mut producer) = (Consumer::new(mem.clone(), &LAYOUT), Producer::new(mem, &LAYOUT));
        let mut next = 0;
        for n in 0..12 {
            producer.load_head();
            assert!(producer.has_room(len_of(n), 0));
            produce(&mut producer, &slots, n);
            assert!(producer.position() % SLOTS <= 6, "no lap has room at its end for another");
            consume(&mut consumer, &slots, &mut next);
        }
        assert!(producer.position() > 2 * SLOTS, "several laps");
    });
}

/// The property that `RecvSide::flush` relies on: once the queue pair is closed and its hazard is clear, every message
/// of an admitted sender is in the ring, so no successful message is flushed.
#[test]
fn publishes_all_admitted_messages_before_the_hazard_clears() {
    use crate::sync::atomic::Ordering::{Acquire, Release};
    use crate::{fence, hazard};
    check(|| {
        let (mem, slots) = (memory(), Slots::new());
        mem.store(ACCEPT, 1, Release);
        let mut consumer = Consumer::new(mem.clone(), &LAYOUT);
        let sender = {
            let (mem, slots) = (mem.clone(), slots.clone());
            loom::thread::spawn(move || {
                let mut producer = Producer::new(mem.clone(), &LAYOUT);
                hazard::enter(&mem, hazard::RECEIVES);
                let admitted = mem.load(ACCEPT, Acquire) != 0;
                if admitted {
                    produce(&mut producer, &slots, 0);
                }
                hazard::leave(&mem);
                admitted
            })
        };
        mem.store(ACCEPT, 0, Release);
        fence::heavy();
        let mut next = 0;
        consume(&mut consumer, &slots, &mut next);
        let flushed = hazard::current(&mem) == 0;
        if flushed {
            consume(&mut consumer, &slots, &mut next);
        }
        let succeeded = sender.join().unwrap();
        assert!(!flushed || u32::from(succeeded) == next, "a success whose receive was flushed");
    });
}

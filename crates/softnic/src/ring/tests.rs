//! Models of the ring: what the consumer finds under every interleaving and every reordering that the orderings allow.
//!
//! That they can fail was tried by hand: with the tag stored relaxed, with the word ahead not cleared, and with the head
//! stored relaxed, a model below fails.

#![cfg(loom)]

use loom::model::Builder;

use super::*;
use crate::shared::SharedMem;
use crate::sync::atomic::Ordering::Relaxed;

const LAYOUT: Layout = Layout { ring_slots: 8, rq_depth: 1, recv_sge: 1 };

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(2), 100_000);
    builder.check(model);
}

fn memory() -> SharedMem {
    SharedMem::model(LAYOUT.ring_at() + 8 * SLOT_BYTES)
}

/// Puts message `n`, all of whose payload words look like the header of a later record in the same slots.
fn produce(producer: &mut Producer, n: u32, len: usize) {
    let at = producer.payload_at(len);
    let looks_real = tag(8 + u64::from(n)) | u64::from(Kind::Send as u8) << TAG_BITS;
    producer.memory().copy_in(at, &[looks_real.to_le_bytes(), looks_real.to_le_bytes()].concat()[..len]);
    producer.publish(Kind::Send, 0, len as u32, n, len);
}

/// Takes what is there; checks order, length and payload.
fn consume(consumer: &mut Consumer, next: &mut u32, len: usize) {
    while let Some(record) = consumer.peek().expect("the producer writes no garbage") {
        assert_eq!((record.kind, record.imm, record.len_bytes as usize), (Kind::Send, *next, len));
        for word in 0..len / 8 {
            let got = consumer.memory().load(record.payload_at + word * 8, Relaxed);
            let expected = tag(8 + u64::from(*next)) | u64::from(Kind::Send as u8) << TAG_BITS;
            assert_eq!(got, expected, "payload of another time");
        }
        consumer.advance(&record);
        *next += 1;
    }
    consumer.publish_head();
}

/// A stream of `total` messages of `len` bytes; the producer stops for ever after `stop_after` of them.
fn stream(total: u32, stop_after: u32, len: usize) {
    check(move || {
        let mem = memory();
        let mut consumer = Consumer::new(mem.clone(), &LAYOUT);
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::new(mem, &LAYOUT);
            let mut sent = 0;
            // A bounded number of attempts: a full ring is not waited for, the test drains it below.
            for _ in 0..total {
                if sent < stop_after && producer.has_room(len, 0) {
                    produce(&mut producer, sent, len);
                    sent += 1;
                }
            }
            sent
        });
        let mut next = 0;
        consume(&mut consumer, &mut next, len);
        consume(&mut consumer, &mut next, len);
        let sent = producer.join().unwrap();
        consume(&mut consumer, &mut next, len);
        assert_eq!(next, sent, "published and not found, or found and not published");
    });
}

#[test]
fn messages_come_whole_and_in_order_across_the_end() {
    stream(6, 6, 16);
}

#[test]
fn small_messages_fill_the_ring_to_the_last_slot() {
    stream(9, 9, 0);
}

#[test]
fn a_producer_that_stops_leaves_nothing_half_done() {
    for stop_after in 0..3 {
        stream(3, stop_after, 16);
    }
}

/// A producer that stops inside a record: payload written, header word not.
#[test]
fn an_unpublished_payload_is_not_seen() {
    check(|| {
        let mem = memory();
        let mut consumer = Consumer::new(mem.clone(), &LAYOUT);
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::new(mem, &LAYOUT);
            produce(&mut producer, 0, 16);
            assert!(producer.has_room(16, 0));
            let at = producer.payload_at(16);
            producer.memory().copy_in(at, &[0xFF; 16]);
        });
        let mut next = 0;
        consume(&mut consumer, &mut next, 16);
        producer.join().unwrap();
        consume(&mut consumer, &mut next, 16);
        assert_eq!(next, 1);
    });
}

#[test]
fn a_lagging_head_only_means_less_room() {
    check(|| {
        let mem = memory();
        let mut consumer = Consumer::new(mem.clone(), &LAYOUT);
        let mut producer = Producer::new(mem, &LAYOUT);
        let mut sent = 0;
        while producer.has_room(0, 0) {
            produce(&mut producer, sent, 0);
            sent += 1;
        }
        assert_eq!(u64::from(sent), LAYOUT.ring_slots - 1, "one slot is kept for the word cleared ahead");
        let drain = loom::thread::spawn(move || {
            let mut next = 0;
            consume(&mut consumer, &mut next, 0);
            (consumer, next)
        });
        if producer.has_room(0, 0) {
            produce(&mut producer, sent, 0);
            sent += 1;
        }
        let (mut consumer, mut next) = drain.join().unwrap();
        consume(&mut consumer, &mut next, 0);
        assert_eq!(next, sent);
    });
}

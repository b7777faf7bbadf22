//! Random process exits over UC and UD. Processes that send and receive as fast as possible are killed at any moment.
//! The survivor is not notified, receives only complete messages, and finally holds no resources of the exited
//! processes.
//!
//! 60 exits in release, 6 in debug. `FARCALL_TEST_SEED` repeats a run's random choices, `FARCALL_TEST_KILLS` sets the
//! number.

use std::time::Instant;

use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::unreliable::Side;
use crate::support::*;
use farcall_verbs::QpType;
use rand::{RngExt, SeedableRng};

const TRANSPORTS: [QpType; 2] = [QpType::Uc, QpType::Ud];

/// Sends as permitted, and receives what has arrived.
fn turn(side: &mut Side) {
    if side.sent < side.ended + 8 {
        side.send_to(side.dest.qpn);
    }
    side.drain();
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let mut sides = TRANSPORTS.map(Side::new);
    for side in &mut sides {
        tell(&mut line, &side.end);
        let to = learn(&mut line).unwrap();
        assert!(side.connect(to));
    }
    loop {
        sides.iter_mut().for_each(turn);
        std::thread::yield_now();
    }
}

/// Another process, and this process's ends of its connections.
struct Worker {
    other: Other,
    sides: [Side; 2],
}

impl Worker {
    fn start() -> Self {
        let mut other = start("worker", &[]);
        let sides = TRANSPORTS.map(|qp_type| {
            let mut side = Side::new(qp_type);
            tell(&mut other.line, &side.end);
            let to = learn(&mut other.line).unwrap();
            assert!(side.connect(to));
            side
        });
        Self { other, sides }
    }

    fn has_heard(&self) -> bool {
        self.sides.iter().all(|side| side.last_seen.is_some())
    }
}

#[test]
fn continues_after_random_crashes_over_uc_and_ud() {
    if !is_alone("continues_after_random_crashes_over_uc_and_ud") {
        return;
    }
    let seed = number("FARCALL_TEST_SEED").unwrap_or(1);
    let kills = number("FARCALL_TEST_KILLS").unwrap_or(if cfg!(debug_assertions) { 6 } else { 60 });
    println!("FARCALL_TEST_SEED={seed} FARCALL_TEST_KILLS={kills}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    drop(Worker::start());
    let before = Holdings::now();
    let mut workers: Vec<Worker> = (0..2).map(|_| Worker::start()).collect();
    for death in 0..kills {
        let all_turn = |workers: &mut [Worker]| {
            workers.iter_mut().flat_map(|worker| &mut worker.sides).for_each(turn);
            std::thread::yield_now();
        };
        (0..rng.random_range(0..2000_u32)).for_each(|_| all_turn(&mut workers));
        let start = Instant::now();
        while !workers.iter().all(Worker::has_heard) {
            assert!(start.elapsed() < LOST, "death {death}: a live peer is not heard");
            all_turn(&mut workers);
        }
        let victim = rng.random_range(0..workers.len());
        workers[victim].other.end();
        // The ends of exited processes continue for a while; they must not be notified.
        for _ in 0..rng.random_range(0..200_u32) {
            workers.iter_mut().flat_map(|worker| &mut worker.sides).for_each(turn);
        }
        for side in &mut workers[victim].sides {
            side.fail();
            assert!(side.end.qp.is_quiesced(), "a dead peer is not inside anything");
        }
        workers[victim] = Worker::start();
    }
    drop(workers);
    before.wait_for(|| ());
}

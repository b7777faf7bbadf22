//! Random calls return on connections that move to shared memory what they return on plain TCP.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Running, TestDirectory, compile, moved_bytes, program};

/// Number of seeds of one process.
const SEEDS_PER_PROCESS: u64 = 100;
/// Uses after which connections move, one after the other: before, among and after the calls that are compared.
const USES: [u32; 5] = [1, 3, 8, 20, 40];

/// Number of events for which waits of an epoll object with three members have capacity.
const ROOMS: [u32; 3] = [3, 1, 2];

/// Parameters that all calls of a group of seeds share.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// One of [`USES`].
    uses: u32,
    /// One of [`ROOMS`].
    room: u32,
}

/// Runs the calls of `count` seeds on plain TCP and with the library. Returns the results of both, one line for each
/// seed (with `verbose` one for each call), and the number of the process with the library.
fn run(path: &str, mode: Mode, first: u64, count: u64, verbose: bool) -> ([String; 2], u32) {
    // Both run at once, because they mostly sleep.
    let mut running = [false, true].map(|is_preloaded| {
        let mut command = program(path, is_preloaded);
        command.env("FARCALL_RUN_AFTER", mode.uses.to_string());
        command.args([first.to_string(), count.to_string(), mode.room.to_string()]);
        if verbose {
            command.arg("verbose");
        }
        Running::start(command)
    });
    let pid = running[1].pid();
    let texts = running.each_mut().map(|running| {
        let (text, status) = running.finish();
        assert!(status.success(), "FARCALL_TEST_SEED={first} ({count} seeds, {mode:?}): {status}");
        text
    });
    (texts, pid)
}

/// Compares `seeds` seeds.
fn compare(path: &str, first: u64, seeds: u64) {
    let mut has_moved = false;
    for (chunk, from) in (first..first + seeds).step_by(SEEDS_PER_PROCESS as usize).enumerate() {
        let mode = Mode { uses: USES[chunk % USES.len()], room: ROOMS[chunk % ROOMS.len()] };
        let ([plain, moved], pid) = run(path, mode, from, SEEDS_PER_PROCESS.min(first + seeds - from), false);
        has_moved |= moved_bytes(pid).is_none_or(|bytes| bytes > 0);
        let differs = plain.lines().zip(moved.lines()).position(|(plain, moved)| plain != moved);
        if let Some(at) = differs {
            let seed = from + at as u64;
            compare_calls(path, mode, seed);
            panic!("FARCALL_TEST_SEED={seed} {mode:?}: the calls differ after others only");
        }
        assert_eq!(plain.lines().count(), moved.lines().count());
    }
    assert!(has_moved, "no connection has moved");
}

/// Compares each call of a seed.
fn compare_calls(path: &str, mode: Mode, seed: u64) {
    let (texts, _) = run(path, mode, seed, 1, true);
    let differ =
        texts[0].lines().zip(texts[1].lines()).enumerate().find(|(_, (plain, moved))| plain != moved);
    assert_eq!(differ, None, "FARCALL_TEST_SEED={seed} {mode:?}: call, on TCP, and moved\n{}", texts[1]);
}

/// Bytes before the ring and in it that reach SO_RCVLOWAT only together.
#[test]
fn counts_bytes_before_the_ring_for_the_low_water_mark() {
    let directory = TestDirectory::new("differ-again");
    let Some(path) = compile(&directory, "differ") else { return };
    compare_calls(&path, Mode { uses: 20, room: 3 }, 258_995_626);
}

/// A wait with capacity for all members, of which one returns to TCP when the kernel has reported it.
#[test]
fn reports_a_member_that_returns_to_tcp_in_the_same_wait() {
    let directory = TestDirectory::new("differ-return");
    let Some(path) = compile(&directory, "differ") else { return };
    compare_calls(&path, Mode { uses: 3, room: 3 }, 778_602);
}

/// A peek at all bytes (MSG_PEEK and MSG_WAITALL) of which some are behind a ring that has ended, also if it was empty.
#[test]
fn ends_a_peek_at_bytes_behind_a_ring() {
    let directory = TestDirectory::new("differ-peek");
    let Some(path) = compile(&directory, "differ") else { return };
    compare_calls(&path, Mode { uses: 3, room: 1 }, 3_060_190);
    compare_calls(&path, Mode { uses: 20, room: 2 }, 5_018_840);
}

/// A member that is suppressed (EPOLLONESHOT) while bytes arrive, and that the program requests again.
#[test]
fn reports_a_member_suppressed_while_bytes_arrived() {
    let directory = TestDirectory::new("differ-off");
    let Some(path) = compile(&directory, "differ") else { return };
    compare_calls(&path, Mode { uses: 3, room: 1 }, 4_085_154);
}

/// A member that is reported once (EPOLLONESHOT) when it has returned to TCP, and ends afterwards.
#[test]
fn reports_a_member_once_that_returns_to_tcp() {
    let directory = TestDirectory::new("differ-once");
    let Some(path) = compile(&directory, "differ") else { return };
    compare_calls(&path, Mode { uses: 8, room: 1 }, 6_080_719);
}

/// Number of the first seed: from the environment, or the same each time, so that each run compares the same calls.
fn first_seed() -> u64 {
    std::env::var("FARCALL_TEST_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// Number of the first seed: from the environment, or another one each time.
fn random_seed() -> u64 {
    let now = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    std::env::var("FARCALL_TEST_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap())
}

#[test]
fn matches_tcp_in_random_calls() {
    let directory = TestDirectory::new("differ");
    let Some(path) = compile(&directory, "differ") else { return };
    compare(&path, first_seed(), 15 * SEEDS_PER_PROCESS);
}

#[test]
#[ignore = "takes FARCALL_SOCKET_SEEDS seeds; bash .ci/run socket_programs"]
fn matches_tcp_in_random_calls_of_many_seeds() {
    let directory = TestDirectory::new("differ-at-length");
    let Some(path) = compile(&directory, "differ") else { return };
    let seeds = std::env::var("FARCALL_SOCKET_SEEDS").map_or(10_000, |seeds| seeds.parse().unwrap());
    let first = random_seed();
    println!("FARCALL_TEST_SEED={first}");
    compare(&path, first, seeds);
}

//! Bytes under random calls, forks and deaths.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{Folder, both_ends, compile, moved_bytes, ring_bytes};

fn assert_done((text, status): &(String, ExitStatus)) {
    assert!(status.success(), "{status}: {text}");
}

/// Threads, poll, select and all forms of epoll, with peeks, partial reads, half-close, and children that take over.
fn exchange(program: &str, seed: u32) {
    let seed = seed.to_string();
    eprintln!("FARCALL_TEST_SEED={seed}");
    let ends = both_ends(program, true, [&seed, &seed]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    assert!(moved_bytes(ends.pids[1]).is_none_or(|bytes| bytes > 1_000_000));
    // Calls are of up to 300,000 bytes: some rings become longer.
    let rings: Vec<u64> = ends.pids.into_iter().flat_map(ring_bytes).collect();
    assert!(rings.is_empty() || rings.iter().any(|bytes| *bytes > 64 << 10), "{rings:?}");
}

/// From the environment, or another one each time.
fn first_seed() -> u32 {
    let random = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    std::env::var("FARCALL_TEST_SEED").map_or_else(|_| random(), |seed| seed.parse().unwrap())
}

#[test]
fn random_traffic_arrives_as_it_was_sent() {
    let folder = Folder::new("traffic");
    let Some(path) = compile(&folder, "traffic") else { return };
    exchange(&path, first_seed());
}

#[test]
#[ignore = "takes FARCALL_SOCKET_SECONDS; bash .ci/run socket_programs"]
fn random_traffic_at_length() {
    let folder = Folder::new("traffic-at-length");
    let Some(path) = compile(&folder, "traffic") else { return };
    let seconds = std::env::var("FARCALL_SOCKET_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let (began, mut seed) = (Instant::now(), first_seed());
    while began.elapsed() < Duration::from_secs(seconds) {
        exchange(&path, seed);
        seed = seed.wrapping_add(1);
    }
}

#[test]
fn bytes_keep_their_order_where_a_ring_ends_before_its_beginning_was_read() {
    let folder = Folder::new("order");
    let Some(path) = compile(&folder, "order") else { return };
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends.server);
    assert_done(&ends.client);
}

#[test]
fn edge_triggered_readers_lose_no_edge() {
    let folder = Folder::new("edges");
    let Some(path) = compile(&folder, "edges") else { return };
    for mode in ["edge", "once", "late", "late-once"] {
        let ends = both_ends(&path, true, [mode, mode]);
        assert_done(&ends.server);
        assert_done(&ends.client);
        assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 1_000_000));
    }
}

#[test]
fn readers_that_believe_how_many_bytes_are_left_get_all() {
    let folder = Folder::new("inq");
    let Some(path) = compile(&folder, "inq") else { return };
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 1_000_000));
}

#[test]
fn the_death_of_one_end_ends_the_other_after_what_had_come() {
    let folder = Folder::new("death");
    let Some(path) = compile(&folder, "death") else { return };
    for _ in 0..10 {
        let ends = both_ends(&path, true, ["dies", "lives"]);
        assert_eq!(ends.server.1.signal(), Some(libc::SIGKILL));
        assert_done(&ends.client);
        let ends = both_ends(&path, true, ["lives", "dies"]);
        assert_eq!(ends.client.1.signal(), Some(libc::SIGKILL));
        assert_done(&ends.server);
    }
}

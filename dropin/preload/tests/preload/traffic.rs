//! Bytes under random calls, forks and deaths.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Folder, both_ends, compile, moved_bytes};

fn assert_done((text, status): &(String, ExitStatus)) {
    assert!(status.success(), "{status}: {text}");
}

/// Threads, poll, select and all forms of epoll, with peeks, partial reads, half-close, and children that take over.
#[test]
#[ignore = "a run was seen not to end: not mended yet; bash .ci/run socket_programs"]
fn random_traffic_arrives_as_it_was_sent() {
    let folder = Folder::new("traffic");
    let Some(path) = compile(&folder, "traffic") else { return };
    let random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().to_string();
    let seed = std::env::var("FARCALL_TEST_SEED").unwrap_or(random);
    eprintln!("FARCALL_TEST_SEED={seed}");
    let ends = both_ends(&path, true, [&seed, &seed]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    assert!(moved_bytes(ends.pids[1]).is_none_or(|bytes| bytes > 1_000_000));
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

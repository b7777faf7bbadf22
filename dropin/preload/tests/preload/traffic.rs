//! Bytes under random calls, forks and kills.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::support::{
    Running, TestDirectory, both_ends, both_ends_early, compile, has, library, moved_bytes,
    moved_bytes_of_connections, program, reasons, ring_bytes,
};

/// Bytes that both ends of each connection exchange before the random ones, and after they are paired.
const MOVED_BYTES_MIN: u64 = 40;

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
    // Which bytes use TCP afterwards depends on time: a full ring, or large transfers, end a move.
    for pid in ends.pids {
        let moved = moved_bytes_of_connections(pid);
        eprintln!("moved {moved:?}");
        assert!(moved.is_empty() || moved.iter().all(|bytes| *bytes >= MOVED_BYTES_MIN), "{moved:?}");
    }
}

/// Number of the first seed: from the environment, or the same each time.
fn first_seed() -> u32 {
    std::env::var("FARCALL_TEST_SEED").map_or(1, |seed| seed.parse().unwrap())
}

#[test]
fn delivers_random_traffic_unchanged() {
    let directory = TestDirectory::new("traffic");
    let Some(path) = compile(&directory, "traffic") else { return };
    exchange(&path, first_seed());
}

#[test]
#[ignore = "takes FARCALL_SOCKET_SECONDS; bash .ci/run socket_programs"]
fn delivers_random_traffic_for_minutes() {
    let directory = TestDirectory::new("traffic-at-length");
    let Some(path) = compile(&directory, "traffic") else { return };
    let seconds = std::env::var("FARCALL_SOCKET_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let (began, mut seed) = (Instant::now(), first_seed());
    while began.elapsed() < Duration::from_secs(seconds) {
        exchange(&path, seed);
        seed = seed.wrapping_add(1);
    }
}

#[test]
fn keeps_byte_order_if_a_ring_ends_before_its_start_is_read() {
    let directory = TestDirectory::new("order");
    let Some(path) = compile(&directory, "order") else { return };
    let ends = both_ends_early(&path, ["x", "x"]);
    assert_done(&ends.server);
    assert_done(&ends.client);
}

/// No ring had space for all bytes when the call began, however many the receiver takes in the meantime.
#[test]
fn lengthens_a_ring_that_one_call_fills() {
    let directory = TestDirectory::new("longer");
    let Some(path) = compile(&directory, "longer") else { return };
    let ends = both_ends(&path, true, ["x", "x"]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    let [server, client] = ends.pids.map(ring_bytes);
    assert!(server.iter().all(|bytes| *bytes == 64 << 10), "{server:?}");
    assert!(client.iter().all(|bytes| *bytes == 1 << 20), "{client:?}");
    assert!(moved_bytes(ends.pids[1]).is_none_or(|bytes| bytes > 200_000));
}

/// Bytes that exceed the rings are sent by TCP, whose buffers have space for them.
#[test]
fn delivers_echoes_that_exceed_the_rings() {
    let directory = TestDirectory::new("echo");
    let Some(path) = compile(&directory, "echo") else { return };
    for (is_preloaded, bytes) in [(false, "262144"), (true, "262144"), (true, "2400000")] {
        let ends = both_ends(&path, is_preloaded, ["x", bytes]);
        assert_done(&ends.server);
        assert_eq!(ends.client.0, format!("{bytes} bytes\n"));
    }
}

/// A program opens as many descriptors as on plain TCP, and a moved connection takes one more, whatever its limit.
#[test]
fn leaves_all_descriptors_to_programs() {
    let directory = TestDirectory::new("scarce");
    let Some(path) = compile(&directory, "scarce") else { return };
    let methods = (6..14).map(|method| format!("60,{method}"));
    for connections in ["60".to_owned(), "240".to_owned()].into_iter().chain(methods) {
        let plain = both_ends(&path, false, [&connections; 2]);
        let moved = both_ends(&path, true, [&connections; 2]);
        for (plain, moved) in [(plain.server, moved.server), (plain.client, moved.client)] {
            assert_done(&plain);
            assert_done(&moved);
            assert_eq!(moved.0, plain.0, "{connections} connections");
        }
        assert!(moved_bytes(moved.pids[0]).is_none_or(|bytes| bytes > 0));
    }
}

/// The library has at most a quarter of the numbers that a process may have.
#[test]
fn takes_one_descriptor_more_for_each_of_2000_connections() {
    const CONNECTIONS: u64 = 2000;
    /// Descriptors of the library for all connections together, in a process.
    const SHARED_MAX: u64 = 8;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_some_and(|limit| limit < 4 * (CONNECTIONS + SHARED_MAX)) {
        eprintln!("SKIPPED: processes may have {limit:?} descriptors (ulimit -Hn)");
        return;
    }
    let directory = TestDirectory::new("many");
    let Some(path) = compile(&directory, "many") else { return };
    let arguments = CONNECTIONS.to_string();
    let [plain, moved] = [false, true].map(|is_preloaded| {
        let ends = both_ends(&path, is_preloaded, [&arguments; 2]);
        [ends.server, ends.client].map(|end| {
            assert_done(&end);
            end.0.trim().parse::<u64>().unwrap()
        })
    });
    for (plain, moved) in plain.into_iter().zip(moved) {
        assert!(plain >= CONNECTIONS, "{plain} descriptors by TCP");
        let more = moved - plain;
        assert!(
            (CONNECTIONS..=CONNECTIONS + SHARED_MAX).contains(&more),
            "{more} descriptors more than {plain}"
        );
    }
}

/// Number of system calls of a program of these tests; with a name, of that system call.
fn system_calls(
    directory: &TestDirectory,
    is_preloaded: bool,
    command: &[&str],
    call: Option<&str>,
) -> usize {
    let trace = directory.path("trace");
    let mut strace = program("strace", false);
    strace.args(["-f", "-o", &trace]);
    if is_preloaded {
        strace.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    }
    let output = strace.args(command).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let calls = std::fs::read_to_string(&trace).unwrap();
    calls.lines().filter(|line| call.is_none_or(|call| line.contains(call))).count()
}

/// Streams in one direction, and large responses, gain nothing by shared memory.
#[test]
fn leaves_large_transfers_and_streams_on_tcp() {
    let directory = TestDirectory::new("sizes");
    let Some(path) = compile(&directory, "sizes") else { return };
    for (sizes, is_moved) in [("stream", false), ("100,65536", false), ("100,100", true), ("100,8192", true)]
    {
        let ends = both_ends(&path, true, [sizes, sizes]);
        assert_done(&ends.server);
        assert_done(&ends.client);
        for pid in ends.pids {
            assert!(moved_bytes(pid).is_none_or(|bytes| (bytes > 0) == is_moved), "{sizes}");
        }
    }
}

/// Connections that moved because of small requests, whose responses are large afterwards.
#[test]
fn returns_to_tcp_when_responses_become_large() {
    let directory = TestDirectory::new("sizes-later");
    let Some(path) = compile(&directory, "sizes") else { return };
    for (sizes, returns) in [("100*100,65536", true), ("100*40000,40000", true), ("100*100,8192", false)] {
        let ends = both_ends(&path, true, [sizes, sizes]);
        assert_done(&ends.server);
        assert_done(&ends.client);
        let why = reasons(ends.pids[0]);
        assert!(
            why.is_empty() || why.contains(&"back on TCP: large responses") == returns,
            "{sizes}: {why:?}"
        );
        // All of the 200 large responses are more than 8 MB.
        assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 8000 && bytes < 4_500_000), "{sizes}");
    }
}

/// The memory of a ring is longer than any file that the process may write.
#[test]
fn stays_on_tcp_where_files_must_be_short() {
    let directory = TestDirectory::new("short-files");
    let Some(path) = compile(&directory, "sizes") else { return };
    let script = directory.path("short-files.sh");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -f 100\nexec {path} \"$@\"\n")).unwrap();
    assert!(program("chmod", false).args(["700", &script]).status().unwrap().success());
    let ends = both_ends(&script, true, ["100,100"; 2]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes == 0));
}

#[test]
fn makes_few_calls_for_connections_that_do_not_last() {
    let directory = TestDirectory::new("short");
    let Some(path) = compile(&directory, "short") else { return };
    if !has("strace", "strace") {
        return;
    }
    let [plain, preloaded] = [false, true].map(|is_preloaded| {
        let count = |connections| system_calls(&directory, is_preloaded, &[&path, connections], None);
        count("150") - count("50")
    });
    // The trace of one end.
    assert!(preloaded <= plain + 100 * 3, "100 connections: {plain} calls by TCP, {preloaded} preloaded");
}

/// A wait whose events are in rings queries the kernel once if that may have others, and rarely if all members have
/// moved.
#[test]
fn queries_the_kernel_at_most_once_per_wait() {
    let directory = TestDirectory::new("waits");
    let Some(path) = compile(&directory, "waits") else { return };
    if !has("strace", "strace") {
        return;
    }
    for (members, max) in [("only", 200 / 8), ("pipe", 200 + 20)] {
        let count = |waits| system_calls(&directory, true, &[&path, waits, members], Some("epoll_pwait("));
        let calls = count("400") - count("200");
        assert!(calls <= max, "{members}: {calls} calls by 200 waits");
    }
}

/// Several epoll objects have the same connection as a member. The wait of one of them consumes the data of the
/// connection's doorbell; the others still report the connection.
#[test]
fn notifies_all_epoll_objects_with_a_connection() {
    let directory = TestDirectory::new("objects");
    let Some(path) = compile(&directory, "objects") else { return };
    for is_preloaded in [false, true] {
        let mut running = Running::start(program(&path, is_preloaded));
        assert_done(&running.finish());
        assert!(!is_preloaded || moved_bytes(running.pid()).is_none_or(|bytes| bytes > 0));
    }
}

/// By epoll with capacity for one event, for both and for all members, and by poll.
#[test]
fn reports_no_connection_before_one_that_was_ready_earlier() {
    let directory = TestDirectory::new("causes");
    let Some(path) = compile(&directory, "causes") else { return };
    for (is_preloaded, room) in [(false, "1"), (true, "1"), (true, "3")] {
        let ends = both_ends(&path, is_preloaded, [room, room]);
        assert_done(&ends.server);
        assert_done(&ends.client);
        assert!(!is_preloaded || moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 0));
    }
}

/// Level-triggered, edge-triggered and EPOLLONESHOT members, moved ones and others, that become ready in any order.
/// Waits with capacity for fewer events than there are members report them in the kernel's order, other waits all of
/// them.
#[test]
fn reports_ready_members_in_the_order_of_the_kernel() {
    let directory = TestDirectory::new("fifo");
    let Some(path) = compile(&directory, "fifo") else { return };
    let few = ["6 1", "6 2", "6 3", "6 8", "6 15", "10 15", "6 16", "6 64", "6 1 2 3", "6 1 64 2 16 15 3 8"];
    let many = ["200 1", "200 15", "200 16", "200 64", "200 16 1 64 8"];
    for arguments in few.into_iter().chain(many) {
        for is_preloaded in [false, true] {
            let mut command = program(&path, is_preloaded);
            command.args(arguments.split(' '));
            let mut running = Running::start(command);
            eprintln!("fifo {arguments}, preloaded: {is_preloaded}");
            assert_done(&running.finish());
            assert!(
                !is_preloaded || reasons(running.pid()).iter().all(|why| *why == "paired with the other end")
            );
            assert!(!is_preloaded || moved_bytes(running.pid()).is_none_or(|bytes| bytes > 0));
        }
    }
}

#[test]
fn reports_every_edge() {
    let directory = TestDirectory::new("edges");
    let Some(path) = compile(&directory, "edges") else { return };
    for mode in ["edge", "once", "late", "late-once"] {
        let ends = both_ends_early(&path, [mode, mode]);
        assert_done(&ends.server);
        assert_done(&ends.client);
        assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 1_000_000));
    }
}

#[test]
fn delivers_all_bytes_to_readers_that_rely_on_tcp_inq() {
    let directory = TestDirectory::new("inq");
    let Some(path) = compile(&directory, "inq") else { return };
    let ends = both_ends_early(&path, ["x", "x"]);
    assert_done(&ends.server);
    assert_done(&ends.client);
    assert!(moved_bytes(ends.pids[0]).is_none_or(|bytes| bytes > 1_000_000));
}

#[test]
fn delivers_received_bytes_before_the_end_of_a_killed_peer() {
    let directory = TestDirectory::new("kill");
    let Some(path) = compile(&directory, "kill") else { return };
    for _ in 0..10 {
        let ends = both_ends(&path, true, ["dies", "lives"]);
        assert_eq!(ends.server.1.signal(), Some(libc::SIGKILL));
        assert_done(&ends.client);
        let ends = both_ends(&path, true, ["lives", "dies"]);
        assert_eq!(ends.client.1.signal(), Some(libc::SIGKILL));
        assert_done(&ends.server);
    }
}

//! One end of a connection is killed, or stopped for a while, before its n-th store to shared memory, for every n: the
//! other end receives a beginning of what was sent and then an end, or all of it. The stores of the pairing are among
//! them.

#[path = "../../../tests/support/store_step.rs"]
mod store_step;
#[allow(dead_code)]
#[path = "preload/support.rs"]
mod support;

use std::process::ExitStatus;

use store_step::store_step;
use support::{TestDirectory, both_ends_early, compile};

/// Number of runs in which the victim exits by itself after which it has no further store.
const ENDS: u32 = 10;

/// One run; returns whether the victim ended by itself.
fn run(program: &str, nth: u64, signal: i32) -> bool {
    let victim = format!("{nth},{signal}");
    // The connecting and the accepting end alternate.
    let is_server = nth.is_multiple_of(2);
    let arguments = if is_server { [victim.as_str(), "lives"] } else { ["lives", victim.as_str()] };
    let ends = both_ends_early(program, arguments);
    let (victim, survivor) = if is_server { (ends.server, ends.client) } else { (ends.client, ends.server) };
    let ended = |status: ExitStatus| status.code().unwrap_or_else(|| panic!("store {nth}: {status}"));
    assert_eq!(ended(survivor.1), 0, "store {nth}, signal {signal}: the other end: {}", survivor.0);
    match ended(victim.1) {
        0 => {
            assert_eq!((victim.0.trim(), survivor.0.trim()), ("whole", "whole"), "store {nth}");
            true
        }
        code => {
            assert_eq!((code, signal), (libc::SIGKILL, libc::SIGKILL), "store {nth}: {}", victim.0);
            false
        }
    }
}

fn program(test: &str) -> Option<(TestDirectory, String)> {
    let directory = TestDirectory::new(&format!("stores-{test}"));
    let path = compile(&directory, "stores")?;
    Some((directory, path))
}

/// Some stores of a killed end and of a stopped one; the tests below take all.
#[test]
fn delivers_a_prefix_or_all_after_a_kill_or_stop_at_some_stores() {
    let Some((_folder, path)) = program("some") else { return };
    for nth in [1, 2, 5, 9, 14, 20, 27, 35, 44, 54, 65, 77] {
        run(&path, nth, libc::SIGKILL);
        assert!(run(&path, nth, libc::SIGSTOP), "store {nth}");
    }
}

#[test]
#[ignore = "takes a minute: cargo test --profile release-test -- --ignored"]
fn delivers_a_prefix_and_an_end_after_a_kill_at_any_store() {
    let Some((_folder, path)) = program("killed") else { return };
    let (mut nth, mut ends) = (0, 0);
    while ends < ENDS {
        nth += store_step();
        ends = if run(&path, nth, libc::SIGKILL) { ends + 1 } else { 0 };
    }
    println!("{nth} stores");
    assert!(nth > 50, "an end stores more often than that");
}

#[test]
#[ignore = "takes a minute: cargo test --profile release-test -- --ignored"]
fn delivers_exact_bytes_after_a_stop_at_any_store() {
    let Some((_folder, path)) = program("stopped") else { return };
    for nth in (1..200).step_by(store_step() as usize) {
        assert!(run(&path, nth, libc::SIGSTOP), "store {nth}");
    }
}

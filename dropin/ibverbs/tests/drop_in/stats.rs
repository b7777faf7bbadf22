//! Counters of unmodified programs.

use std::collections::HashMap;

use farcall_softnic::FlightEvent;
use farcall_stats::{BlockReport, read_pid};

use crate::roles::role;
use crate::support::{Folder, Running, words};

fn counters(block: &BlockReport) -> HashMap<&str, u64> {
    block.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

/// The provider for the system's library registers what the library permits.
#[test]
fn registers_a_region_of_no_bytes_over_libibverbs() {
    let folder = Folder::new("no-bytes");
    let output = Running::start(role(&folder, "registers_no_bytes", "")).finish();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn counts_messages_and_errors_of_a_running_program() {
    let folder = Folder::new("stats");
    let mut program = Running::start(role(&folder, "sends_and_stays", ""));
    let line = program.line_with("ready ");
    let number = line.split_whitespace().last().unwrap().to_owned();
    let report = read_pid(program.pid()).unwrap();
    assert!(report.alive);
    let of_one = |block: &&BlockReport| block.label.contains(&number);
    let one = report.blocks.iter().find(of_one).unwrap_or_else(|| panic!("no {number} in {report:?}"));
    let counted = counters(one);
    assert_eq!((counted["messages_sent"], counted["bytes_initiated"]), (3, 300), "{counted:?}");
    // The first may wait for its route; the fourth finds no receive.
    assert!(matches!((counted["waits"], counted["send_errors"]), (1 | 2, 1)), "{counted:?}");
    let told: Vec<FlightEvent> =
        one.records.iter().filter_map(|record| FlightEvent::of(record.code, record.argument)).collect();
    assert_eq!(told.len(), one.records.len(), "every event has words: {one:?}");
    for (event, about) in
        [("state", "RTS"), ("wait", "receiver"), ("send_failed", "RNR_RETRY_EXC_ERR"), ("state", "ERR")]
    {
        assert!(
            told.iter().any(|told| told.event == event && told.about == about),
            "no {event} {about}: {told:?}"
        );
    }
    let others = report.blocks.iter().filter(|block| block.label.contains(" qp 0x") && !of_one(block));
    let received: Vec<(u64, u64)> = others
        .map(counters)
        .map(|counted| (counted["messages_received"], counted["bytes_received"]))
        .collect();
    assert_eq!(received, [(3, 300)]);
}

//! Every preset of calls, and every store that clients READ, over RoCEv2 between two network namespaces with a cable
//! between them (`.ci/networks`).
#![cfg(feature = "full")]

#[path = "support/networks.rs"]
mod networks;

use std::process::Command;

use farcall_link::PRESETS;
use networks::between_networks;
use serde_json::Value;

/// Duration of each measurement of `bench kv`.
const DURATION_MS: f64 = 10.0;

/// Measures every preset of calls and every store that clients READ, and checks every value read. Some values fit a
/// slot or a datagram, some do not.
const MEASURE: &str = "set -e
    ip netns exec $NETWORK_B FARCALL bench kv --listen 10.99.0.2:11400 --json > /run/said &
    server=$!
    until grep -q listening /run/said; do kill -0 $server; sleep 0.02; done
    ip netns exec $NETWORK_A FARCALL bench kv --connect 10.99.0.2:11400 --preset all --window 4 --workload A \
        --provider PROVIDER --records 60 --value-len 8-6000 --repetitions 1 --duration-ms DURATION --json
    ip netns exec $NETWORK_A cat /sys/class/net/cable/statistics/rx_packets";

/// Command of the program, and its provider.
const OWN: [&str; 2] = ["\"$0\"", "softnic"];
/// The same with the drop-in library, whose device is the software RNIC.
const BY_LIBRARY: [&str; 2] = ["\"$0\" verbs run -- \"$0\"", "ibv"];

fn every_preset_holds([program, provider]: [&str; 2], faults: &str) {
    let tried = between_networks("exit 0", faults);
    if !tried.status.success() {
        eprintln!("SKIPPED: no two networks here: {}", String::from_utf8_lossy(&tried.stderr).trim());
        return;
    }
    let script = MEASURE.replace("DURATION", &DURATION_MS.to_string());
    let script = script.replace("FARCALL", program).replace("PROVIDER", provider);
    let output = between_networks(&script, faults);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let (report, packets) = said.trim().rsplit_once('\n').unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["sound"], true, "{}", report["problems"]);
    assert!(report["conditions"]["provider"].as_str().unwrap().starts_with(provider), "{report}");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let mut operations = 0.0;
    for name in PRESETS.iter().map(|preset| preset.name).chain(["pilaf", "farm", "farm-var"]) {
        let row = rows.iter().find(|row| row["front_end"] == name);
        let row = row.unwrap_or_else(|| panic!("{name} was not measured: {report}"));
        operations += row["ops_per_second"]["median"].as_f64().unwrap() * DURATION_MS / 1e3;
    }
    // Each operation needed at least one packet to the client, so none used shared memory.
    assert!(operations > 0.0 && packets.parse::<f64>().unwrap() > operations, "{packets} for {operations}");
}

#[test]
fn every_preset_holds_between_two_networks() {
    every_preset_holds(OWN, "");
}

#[test]
fn passes_every_preset_between_lossy_networks() {
    every_preset_holds(OWN, "seed=1,loss=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01");
}

#[test]
fn every_preset_holds_over_libibverbs() {
    let program = env!("CARGO_BIN_EXE_farcall");
    if !Command::new(program)
        .args(["verbs", "run", "--", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!(
            "SKIPPED: the drop-in library is not built: cargo build -p farcall-ibverbs -p farcall-rdmacm"
        );
        return;
    }
    every_preset_holds(BY_LIBRARY, "");
}

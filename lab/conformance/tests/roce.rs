//! Runs the suite on the software RNIC with all traffic over RoCEv2, without and with faults on the wire: both ends in
//! one process, in a network namespace of its own, where the port is free.

use std::process::Command;
use std::rc::Rc;

use farcall_conformance::{Case, Host, World, all, matches, of_provider, run};
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

const PATTERNS: &str = "FARCALL_TEST_PATTERNS";

/// The suite in this process, configured by the environment.
#[test]
#[ignore = "the other tests run it in an environment"]
fn suite() {
    let device = SoftNic::new().devices().unwrap().remove(0);
    let world: Rc<dyn World> = Rc::new(Host::new(device).between_hosts());
    let patterns = std::env::var(PATTERNS).unwrap();
    let wanted = |case: &Case| patterns.split(' ').any(|pattern| matches(pattern, &case.name));
    let cases: Vec<Case> = all().into_iter().filter(wanted).collect();
    assert!(!cases.is_empty(), "no case matches {patterns}");
    let report = run(&world, &cases, of_provider("softnic"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
}

/// Runs the suite with faults, in a network namespace of its own.
fn conforms(patterns: &str, faults: &str) {
    let script = "ip link set lo up && exec \"$0\" --ignored --exact suite --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .envs([("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", faults), (PATTERNS, patterns)])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("0 failed"), "{faults}: {text}{errors}");
}

#[test]
fn the_suite_holds_over_roce() {
    conforms("*", "");
}

#[test]
fn conforms_over_a_network_that_drops_and_corrupts_packets() {
    let faults = "seed=3,loss=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01,mark=0.05";
    conforms("rc/send/* rc/write/* rc/read/* rc/fetch-add/* rc/order/*", faults);
}

//! Runs the suite on the software RNIC with injected faults: delayed completions must still conform to the
//! specification.

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use farcall_conformance::{Case, Host, World, all, matches, of_provider, run};
use farcall_faults::Faults;
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

/// Two suites at once could keep a small machine busy for longer than the deadlines of the cases.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the suite; `excused` is the pattern of cases that cannot hold with the faults.
fn conforms(spec: &str, excused: &str) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let faults = Faults::new(spec.parse().unwrap(), None);
    let device = faults.around(SoftNic::new().devices().unwrap().remove(0));
    let world: Rc<dyn World> = Rc::new(Host::new(device));
    let cases: Vec<Case> = all().into_iter().filter(|case| !matches(excused, &case.name)).collect();
    let report = run(&world, &cases, of_provider("softnic"), |_| {}).unwrap();
    assert_eq!(report.failed(), 0, "{}: {report}", faults.text());
}

#[test]
fn nothing_changes_where_faults_are_possible_and_none_happens() {
    conforms("seed=1,kill_qp=1e-300", "");
}

#[test]
fn completions_that_come_late_keep_to_the_specification() {
    // These cases assume that a request completed at one end has also completed at the other.
    conforms("seed=2,delay=20us..500us", "*/notify/completed-then-armed-is-found-by-a-poll");
}

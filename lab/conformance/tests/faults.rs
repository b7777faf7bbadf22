//! The suite on the software RNIC behind faults: what comes late is still what the specification says.

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use farcall_conformance::{Case, Host, World, all, matches, of_provider, run};
use farcall_faults::Faults;
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

/// Two suites at once keep a small machine busy for longer than its patience with each case.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// `excused`: cases that cannot hold, as a pattern.
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
    // Those take it that here, too, is complete what is complete at the other end.
    conforms("seed=2,delay=20us..500us", "*/notify/completed-then-armed-is-found-by-a-poll");
}

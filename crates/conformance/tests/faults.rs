//! The suite on the software RNIC behind faults: what comes late is still what the specification says.

use std::rc::Rc;

use farcall_conformance::{Host, World, all, of_provider, run};
use farcall_faults::Faults;
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

fn conforms(spec: &str) {
    let faults = Faults::new(spec.parse().unwrap(), None);
    let device = faults.around(SoftNic::new().devices().unwrap().remove(0));
    let world: Rc<dyn World> = Rc::new(Host::new(device));
    let report = run(&world, &all(), of_provider("softnic"), |_| {}).unwrap();
    assert_eq!(report.failed(), 0, "{}: {report}", faults.text());
}

#[test]
fn nothing_changes_where_faults_are_possible_and_none_happens() {
    conforms("seed=1,kill_qp=1e-300");
}

#[test]
fn completions_that_come_late_keep_to_the_specification() {
    conforms("seed=2,delay=20us..500us");
}

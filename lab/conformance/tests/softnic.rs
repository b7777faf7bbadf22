//! Runs the suite on the software RNIC with both ends in this process. `CONFORMANCE_FILTER` selects cases.

use std::rc::Rc;

use farcall_conformance::{Case, Host, Outcome, World, all, matches, of_provider, run};
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

#[test]
fn the_software_rnic_conforms_in_one_process() {
    let device = SoftNic::new().devices().unwrap().remove(0);
    let world: Rc<dyn World> = Rc::new(Host::new(device));
    let filter = std::env::var("CONFORMANCE_FILTER").unwrap_or_else(|_| "*".into());
    let cases: Vec<Case> = all().into_iter().filter(|case| matches(&filter, &case.name)).collect();
    assert!(!cases.is_empty(), "no case matches {filter}");
    let report = run(&world, &cases, of_provider("softnic"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
    let outdated = report.count(|outcome| matches!(outcome, Outcome::UnexpectedPass { .. }));
    assert_eq!(outdated, 0, "listed as deviations, but they pass: {report}");
    // A machine may lack huge pages, and UC has no shared receive queues here; all other features are supported.
    let lacking = report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Unsupported { .. }));
    let known = |name: &str| name.starts_with("mr/huge-pages/") || name.starts_with("uc/srq/");
    let lacking: Vec<&str> = lacking.map(|case| &*case.name).filter(|name| !known(name)).collect();
    assert!(lacking.is_empty(), "not offered: {lacking:?}");
}

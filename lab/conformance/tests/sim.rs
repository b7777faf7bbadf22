//! Runs the suite in virtual time.

use std::rc::Rc;

use farcall_conformance::{Case, Outcome, Simulated, World, all, matches, of_provider, run};
use farcall_sim::Config;

fn conforms(world: Simulated) {
    let world: Rc<dyn World> = Rc::new(world);
    let report = run(&world, &all(), of_provider("sim"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
    let outdated = report.count(|outcome| matches!(outcome, Outcome::UnexpectedPass { .. }));
    assert_eq!(outdated, 0, "listed as deviations, but they pass: {report}");
}

#[test]
fn the_simulator_conforms() {
    conforms(Simulated::new(1));
}

#[test]
fn the_simulator_conforms_where_placement_is_out_of_order() {
    let mut config = Config::new(2);
    config.params.placement_in_order = false;
    conforms(Simulated::with_config(config, "placement out of order, seed 2"));
}

#[test]
fn retries_unreliable_cases_after_packet_loss() {
    let mut config = Config::new(3);
    config.faults.loss_ppm = 3_000;
    let world: Rc<dyn World> = Rc::new(Simulated::with_config(config, "with losses, seed 3"));
    let cases: Vec<Case> = all().into_iter().filter(|case| matches("uc/*", &case.name)).collect();
    let report = run(&world, &cases, of_provider("sim"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
    let again = report.cases.iter().filter(|case| case.tries > 1).count();
    assert!(again > 0 && again < cases.len() / 2, "{again} of {} were tried again", cases.len());
}

//! The suite in virtual time.

use std::rc::Rc;

use farcall_conformance::{Outcome, Simulated, World, all, of_provider, run};
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

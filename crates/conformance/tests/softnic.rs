//! The suite on the software RNIC, both ends in this process.

use std::rc::Rc;

use farcall_conformance::{Host, World, all, of_provider, run};
use farcall_softnic::SoftNic;
use farcall_verbs::Provider;

#[test]
fn the_software_rnic_conforms_in_one_process() {
    let device = SoftNic::new().devices().unwrap().remove(0);
    let world: Rc<dyn World> = Rc::new(Host::new(device));
    let report = run(&world, &all(), of_provider("softnic"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
}

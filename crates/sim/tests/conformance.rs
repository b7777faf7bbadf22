//! The conformance suite in virtual time: two nodes, over a network that is well and over one that is not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farcall_conformance::{Local, Pace, Side, World, all, of_provider, run};
use farcall_sim::{Config, Faults, Host};
use farcall_verbs::{Nanos, Provider};

struct SimWorld {
    world: RefCell<farcall_sim::World>,
    nodes: [Host; 2],
    name: &'static str,
}

impl SimWorld {
    fn new(name: &'static str, config: Config) -> Rc<dyn World> {
        let mut world = farcall_sim::World::new(config);
        let nodes = [world.add_node(), world.add_node()];
        Rc::new(Self { world: RefCell::new(world), nodes, name })
    }
}

impl World for SimWorld {
    fn name(&self) -> String {
        format!("sim, {}", self.name)
    }

    fn provider(&self) -> &'static str {
        "sim"
    }

    fn sides(&self) -> Result<[Box<dyn Side>; 2], String> {
        let side = |node: &Host| -> Result<Box<dyn Side>, String> {
            let device = node.devices().map_err(|error| error.to_string())?.remove(0);
            let context = device.open().map_err(|error| error.to_string())?;
            Ok(Box::new(Local::new("sim", context)))
        };
        Ok([side(&self.nodes[0])?, side(&self.nodes[1])?])
    }

    fn idle(&self) {
        // Some events at once, so that a look at the queues does not follow each; and time passes also when nothing
        // is to happen.
        self.world.borrow_mut().run_for(Duration::from_nanos(500));
    }

    fn now(&self) -> Duration {
        self.world.borrow().now() - Nanos(0)
    }

    fn pace(&self) -> Pace {
        Pace { deadline: Duration::from_secs(20), quiet: Duration::from_micros(200), quick_retry: (8, 1) }
    }
}

fn conforms(name: &'static str, config: Config) {
    let world = SimWorld::new(name, config);
    let report = run(&world, &all(), of_provider("sim"), |_| {}).unwrap();
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
}

#[test]
fn the_simulator_conforms() {
    conforms("a network without faults", Config::new(1));
}

#[test]
fn the_simulator_conforms_where_placement_is_out_of_order() {
    let mut config = Config::new(2);
    config.params.placement_in_order = false;
    conforms("placement out of order", config);
}

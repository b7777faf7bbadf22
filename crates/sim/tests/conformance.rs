//! The conformance suite in virtual time: two nodes, over a network that is well and over one that is not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farcall_conformance::{Answer, Call, Local, Pace, Refusal, Side, World, all, of_provider, run};
use farcall_sim::{Config, Host};
use farcall_verbs::{Nanos, Provider};

/// An end whose owner sleeps in virtual time.
struct SimSide {
    local: Local,
    world: Rc<RefCell<farcall_sim::World>>,
}

impl Side for SimSide {
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        let Call::Sleep { channel, timeout_ms } = call else { return self.local.call(call) };
        let fd = self.local.channel_fd(*channel).unwrap_or(-1);
        let timeout = Duration::from_millis((*timeout_ms).into());
        let mut world = self.world.borrow_mut();
        let until = world.now() + timeout;
        let is_ready = world.run_while_not(timeout, |world| world.is_readable(fd));
        if !is_ready {
            world.run_until(until);
        }
        Ok(Answer::Readable(is_ready))
    }
}

struct SimWorld {
    world: Rc<RefCell<farcall_sim::World>>,
    nodes: [Host; 2],
    name: &'static str,
}

impl SimWorld {
    fn make(name: &'static str, config: Config) -> Rc<dyn World> {
        let mut world = farcall_sim::World::new(config);
        let nodes = [world.add_node(), world.add_node()];
        Rc::new(Self { world: Rc::new(RefCell::new(world)), nodes, name })
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
            Ok(Box::new(SimSide { local: Local::new("sim", context), world: self.world.clone() }))
        };
        Ok([side(&self.nodes[0])?, side(&self.nodes[1])?])
    }

    fn idle(&self) {
        // Up to the next event, so that a long wait takes few looks; at least a little, at most what is quiet.
        let mut world = self.world.borrow_mut();
        let (least, most) = (world.now() + Duration::from_nanos(500), world.now() + Duration::from_millis(1));
        let next = world.next_event_at().unwrap_or(most);
        world.run_until(next.clamp(least, most));
    }

    fn now(&self) -> Duration {
        self.world.borrow().now() - Nanos(0)
    }

    fn pace(&self) -> Pace {
        Pace { deadline: Duration::from_secs(20), quiet: Duration::from_micros(200), quick_retry: (8, 1) }
    }
}

fn conforms(name: &'static str, config: Config) {
    let world = SimWorld::make(name, config);
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

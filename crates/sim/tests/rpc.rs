//! Remote calls in virtual time: the endpoints of farcall-rpc, unchanged.

mod support {
    pub mod calls;
    pub mod rpc;

    pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }
}

use std::time::Duration;

use farcall_rpc::{CallerConfig, FetchThenReply, Path, ResponderConfig, ServerReply};
use farcall_sim::{Config, Waiting, World};
use support::calls::*;
use support::rpc::*;

fn calls_end_well<P: Path>(server_waits: Waiting, client_waits: Waiting, breaks: u32) -> u64 {
    let mut world = World::new(Config::new(11));
    let (server_host, client_host) = (world.add_node(), world.add_node());
    let executions = Executions::default();
    let echo = Echo { host: server_host.clone(), executions: executions.clone() };
    let server = ServerProgram::new(&server_host, nic(&server_host, 1), ResponderConfig::default(), 1, echo);
    let server = world.spawn(&server_host, server_waits, server);
    let workload = Calls::new(0, world.random(0), 200);
    let client = ClientProgram::<P, _>::new(
        &client_host,
        server_host.id(),
        CallerConfig { notify: client_waits == Waiting::Event, ..CallerConfig::default() },
        2,
        workload,
    );
    let client = world.spawn(&client_host, client_waits, client);
    for number in 0..breaks {
        let is_connected = |world: &mut World| {
            world.look::<ClientProgram<P, Calls>>(client).unwrap().handshakes == number + 1
        };
        assert!(world.run_while_not(Duration::from_secs(1), is_connected));
        world.run_for(Duration::from_micros(20));
        world.endpoint::<ClientProgram<P, Calls>>(client).unwrap().hang_up();
    }
    let done = world.run_while_not(Duration::from_secs(20), |world| {
        Workload::<P>::is_done(&world.look::<ClientProgram<P, Calls>>(client).unwrap().workload)
    });
    let program = world.look::<ClientProgram<P, Calls>>(client).unwrap();
    let server = world.look::<ServerProgram<Echo>>(server).unwrap();
    assert!(done, "calls are outstanding: {}, {}", program.describe(), server.describe());
    assert!(program.workload.well >= 190, "{} of 200", program.workload.well);
    assert_eq!(program.handshakes, 1 + breaks);
    assert_eq!(program.caller.counters().sessions_resumed.get(), u64::from(breaks));
    check_calls(&program.workload, &executions);
    world.trace_hash()
}

#[test]
fn the_endpoints_of_rpc_run_unchanged_in_virtual_time() {
    for waits in
        [(Waiting::Poll, Waiting::Poll), (Waiting::Event, Waiting::Event), (Waiting::Event, Waiting::Poll)]
    {
        calls_end_well::<FetchThenReply>(waits.0, waits.1, 0);
        calls_end_well::<ServerReply>(waits.0, waits.1, 0);
    }
}

#[test]
fn a_run_of_rpc_repeats_to_the_bit() {
    let run = || calls_end_well::<FetchThenReply>(Waiting::Poll, Waiting::Event, 0);
    assert_eq!(run(), run());
}

#[test]
fn a_session_goes_on_over_another_connection_in_virtual_time() {
    calls_end_well::<FetchThenReply>(Waiting::Poll, Waiting::Poll, 2);
    calls_end_well::<ServerReply>(Waiting::Event, Waiting::Event, 2);
}

//! Remote calls in virtual time, with the unchanged endpoints of farcall-rpc.

use std::time::Duration;

use super::plan;
use crate::support::calls::*;
use crate::support::rpc::*;
use farcall_link::{PRESETS, Plan, ResponsePath};
use farcall_rpc::{CallerConfig, ResponderConfig};
use farcall_sim::{Config, RecordKind, WaitStrategy, World};

fn calls_end_well(plan: Plan, server_waits: WaitStrategy, client_waits: WaitStrategy) -> u64 {
    let mut world = World::new(Config { keep_records: 1 << 20, ..Config::new(11) });
    let (server_host, client_host) = (world.add_node(), world.add_node());
    let executions = Executions::default();
    let echo = Echo { host: server_host.clone(), executions: executions.clone(), later: Later::default() };
    let server = ServerProgram::new(&server_host, nic(&server_host, 1), ResponderConfig::default(), 1, echo);
    let server = world.spawn(&server_host, server_waits, server);
    let workload = Calls::new(0, world.random(0), 200);
    let client = ClientProgram::new(
        &client_host,
        server_host.id(),
        CallerConfig::default().notify(client_waits == WaitStrategy::Event).plan(plan),
        2,
        workload,
    );
    let client = world.spawn(&client_host, client_waits, client);
    let done = world.run_while_not(Duration::from_secs(20), |world| {
        Workload::is_done(&world.inspect::<ClientProgram<Calls>>(client).unwrap().workload)
    });
    let program = world.inspect::<ClientProgram<Calls>>(client).unwrap();
    let server = world.inspect::<ServerProgram<Echo>>(server).unwrap();
    assert!(done, "calls are outstanding: {}, {}", program.describe(), server.describe());
    assert!(program.workload.well >= 190, "{} of 200", program.workload.well);
    assert_eq!(program.handshakes, 1);
    check_calls(&program.workload, &executions);
    let put_off = world.last_records().iter().filter(|record| record.kind == RecordKind::NotReady).count();
    assert_eq!(put_off, 0, "no message finds a receiver not ready");
    world.trace_hash()
}

#[test]
fn the_endpoints_of_rpc_run_unchanged_in_virtual_time() {
    for waits in [
        (WaitStrategy::Poll, WaitStrategy::Poll),
        (WaitStrategy::Event, WaitStrategy::Event),
        (WaitStrategy::Event, WaitStrategy::Poll),
    ] {
        for preset in PRESETS {
            calls_end_well(preset.plan, waits.0, waits.1);
        }
    }
}

/// The one datagram queue pair outlives its peers, as sender and as receiver.
#[test]
fn frees_server_state_of_departed_datagram_clients() {
    let are_datagrams = |plan: &Plan| plan.response == ResponsePath::Datagram;
    PRESETS.iter().map(|preset| preset.plan).filter(are_datagrams).for_each(leave_nothing);
}

fn leave_nothing(plan: Plan) {
    let mut world = World::new(Config::new(12));
    let (server_host, client_host) = (world.add_node(), world.add_node());
    let echo = Echo { host: server_host.clone(), executions: Executions::default(), later: Later::default() };
    let config = ResponderConfig::default();
    let linger = config.session_linger;
    let server = ServerProgram::new(&server_host, nic(&server_host, 1), config, 1, echo);
    world.spawn(&server_host, WaitStrategy::Event, server);
    let mut objects_beside = |number: u32| {
        let workload = Calls::new(number, world.random(number), 40);
        let (seed, config) = (u64::from(number) + 2, CallerConfig::default().plan(plan));
        let client = ClientProgram::new(&client_host, server_host.id(), config, seed, workload);
        let client = world.spawn(&client_host, WaitStrategy::Event, client);
        let done = world.run_while_not(Duration::from_secs(20), |world| {
            Workload::is_done(&world.inspect::<ClientProgram<Calls>>(client).unwrap().workload)
        });
        assert!(done, "{}", world.inspect::<ClientProgram<Calls>>(client).unwrap().describe());
        // By then the sessions of earlier clients are discarded.
        world.run_for(linger * 2);
        let objects = world.objects();
        world.kill(client);
        objects
    };
    let objects = objects_beside(0);
    (1..10).for_each(|number| assert_eq!(objects_beside(number), objects, "beside client {number}"));
}

#[test]
fn a_run_of_rpc_repeats_to_the_bit() {
    let run = || calls_end_well(plan("rf-rpc"), WaitStrategy::Poll, WaitStrategy::Event);
    assert_eq!(run(), run());
}

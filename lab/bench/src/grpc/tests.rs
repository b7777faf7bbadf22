use super::*;
use crate::peer::tests::plan;
use crate::workload::Workload;
use std::time::Duration;

const WAYS: [WaitMode; 4] = [WaitMode::Bp, WaitMode::Bpts, WaitMode::Event, WaitMode::Bpev];

#[test]
fn every_load_is_measured_over_every_preset() {
    let (plan, chosen) = (plan(20), Selection::softnic().open().unwrap());
    let presets = [Preset::Tcp, Preset::Http2, Preset::Native, Preset::Direct];
    for preset in presets.into_iter().chain(WAYS.map(Preset::Waits)) {
        for load in [Load::Unary, Load::Converse, Load::Window, Load::Repeat] {
            let measured = measure(preset, load, &chosen, &plan);
            let measured = measured.unwrap_or_else(|error| panic!("{preset}, {load}: {error}"));
            assert!(measured.trips.count > 0, "{preset}, {load}");
        }
    }
}

#[test]
fn clients_of_one_server_are_measured_whichever_way_it_waits() {
    let (plan, chosen) = (plan(20), Selection::softnic().open().unwrap());
    for mode in WAYS.into_iter().chain([WaitMode::Tcp]) {
        for (calls, request_bytes, answer_bytes) in
            [(Calls::Unary, 4_096, 4_096), (Calls::Direct, 64, 8), (Calls::Stream { in_flight: 32 }, 32, 8)]
        {
            let task =
                ClientPoolTask { clients: 3, ..ClientPoolTask::of(mode, calls, request_bytes, answer_bytes) };
            let pool = client_pool(task, &chosen, &plan).unwrap_or_else(|error| panic!("{task}: {error}"));
            let count = pool.latencies.count();
            assert!((count > 0) == (pool.per_second > 0.0), "{task}: {count}");
            assert!(
                pool.memory_bytes > 0.0 && pool.cores.client >= 0.0 && pool.cores.server >= 0.0,
                "{task}"
            );
        }
    }
}

#[test]
fn knobs_and_pauses_of_a_crowd_are_used() {
    let (plan, chosen) = (plan(20), Selection::softnic().open().unwrap());
    let usual = ClientPoolTask::of(WaitMode::Bpev, Calls::Unary, 8_192, 8_192);
    let interval = Duration::from_micros(400);
    let task = ClientPoolTask {
        interval,
        clients: 2,
        pollers: 2,
        bp_timeout_us: Some(6),
        ring_bytes: Some(32 << 10),
        ..usual
    };
    let measured = client_pool(task, &chosen, &plan).unwrap();
    // Each of two clients begins at most one call per 400 µs. A call that was outstanding at the start of the period
    // counts as well.
    let most = 2.0 * (1.0 / interval.as_secs_f64() + 1.0 / plan.duration.as_secs_f64());
    assert!(measured.per_second <= most, "{} of {most}", measured.per_second);
    let task = ClientPoolTask { pollers: 0, bp_timeout_us: Some(0), ..usual };
    assert!(client_pool(task, &chosen, &plan).unwrap().cores.server.is_finite());
}

#[test]
fn every_ycsb_workload_is_right_over_every_preset() {
    let (plan, chosen) = (plan(20), Selection::softnic().open().unwrap());
    let presets = [Preset::Tcp, Preset::Http2, Preset::Native, Preset::Direct, Preset::Waits(WaitMode::Bpev)];
    for workload in Workload::ALL {
        for preset in presets {
            let task = YcsbTask { preset, workload, clients: 3, records: 300, operations: 90 };
            let ycsb = ycsb(task, &chosen, &plan, 7).unwrap_or_else(|error| panic!("{task}: {error}"));
            let (reads, writes) = (ycsb.reads.count(), ycsb.writes.count());
            assert!(reads + writes == 90 && ycsb.per_second > 0.0, "{task}");
            assert!(reads > 0 && (writes > 0) == (workload != Workload::C), "{task}: {reads}, {writes}");
        }
    }
}

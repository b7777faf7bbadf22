//! The tables of the main job.

use super::crash::Crash;
use super::figures::{Figure, Sample};
use super::steady::Costs;
use super::{Door, KvMainPlan};
use crate::baseline::BaselineResult;
use crate::measure::Spread;
use crate::report::{Cell, Column, Conditions, Table};

pub(super) const TITLE: &str = "One key-value store behind several doors, between two processes";

/// What the last two columns of the main table mean.
pub(super) const VERBS_NOTE: &str = "Verbs: WRITEs and READs of both ends that carried a request or a result, for each operation; over sockets, requests \
     sent together with their replies. Empty READs: fetches that found no result yet; they take the place of the client's \
     polling and cost the server nothing.";

pub(super) fn conditions(plan: &KvMainPlan) -> Conditions {
    let mut conditions = plan.stage.conditions();
    let provider = format!("{} (RC); sockets: kernel TCP on loopback and Unix streams", plan.nic.wish);
    conditions.push("provider", provider);
    conditions
        .push("threads", format!("1 server thread, 1 client thread, {} connection(s)", plan.connections));
    conditions.push(
        "records",
        format!(
            "{} with {} B keys and {} B values; every value read is verified",
            plan.records,
            plan.shape.key_len_bytes(),
            plan.shape.value_len_bytes()
        ),
    );
    conditions
}

pub(super) fn main_table(figures: &[Figure], limits: &[BaselineResult]) -> Table {
    let mut table = Table::new(
        "Speed (medians; ranges over the repetitions behind operations a second)",
        vec![
            Column::new("door", "door"),
            Column::new("workload", "YCSB"),
            Column::new("window", "window"),
            Column::new("ops_per_second", "ops/s"),
            Column::with_decimals("p50_us", "p50 µs", 2).median_only(),
            Column::with_decimals("p99_us", "p99 µs", 2).median_only(),
            Column::with_decimals("p999_us", "p99.9 µs", 2).median_only(),
            Column::with_decimals("server_cpu_us_per_op", "server CPU µs", 3).median_only(),
            Column::with_decimals("client_cpu_us_per_op", "client CPU µs", 3).median_only(),
            Column::new("ops_per_server_core_second", "ops/server core s").median_only(),
            Column::with_decimals("verbs_per_op", "verbs", 3).median_only(),
            Column::with_decimals("empty_reads_per_op", "empty READs", 3).median_only(),
        ],
    );
    for figure in figures {
        let spread = |value: &dyn Fn(&Sample) -> f64| Spread::of(figure.samples.iter().map(value));
        let per_op = |ns: u64, sample: &Sample| ns as f64 / 1e3 / sample.load.ops.max(1) as f64;
        table.push(vec![
            figure.door.to_string().into(),
            format!("{} {}", figure.workload, figure.distribution).into(),
            u64::from(figure.window).into(),
            spread(&|sample| sample.load.ops_per_second()).into(),
            spread(&|sample| sample.load.latency.p50_ns as f64 / 1e3).into(),
            spread(&|sample| sample.load.latency.p99_ns as f64 / 1e3).into(),
            spread(&|sample| sample.load.latency.p999_ns as f64 / 1e3).into(),
            spread(&|sample| per_op(sample.server_cpu.total_ns, sample)).into(),
            spread(&|sample| per_op(sample.client_cpu.total_ns, sample)).into(),
            spread(&Sample::ops_per_server_core_second).into(),
            spread(&|sample| sample.carrying_per_op).into(),
            spread(&|sample| sample.empty_reads_per_op).into(),
        ]);
    }
    table.push(limit_row(limits));
    table
}

fn limit_row(limits: &[BaselineResult]) -> Vec<Cell> {
    let spread = |value: &dyn Fn(&BaselineResult) -> f64| Spread::of(limits.iter().map(value));
    vec![
        "limit: bare shared-memory ping-pong".into(),
        Cell::None,
        1u64.into(),
        spread(&|limit| limit.round_trips.per_second).into(),
        spread(&|limit| limit.round_trips.latency.p50_ns as f64 / 1e3).into(),
        spread(&|limit| limit.round_trips.latency.p99_ns as f64 / 1e3).into(),
        spread(&|limit| limit.round_trips.latency.p999_ns as f64 / 1e3).into(),
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::None,
    ]
}

pub(super) fn costs_table(costs: &[Costs], idle: &[(Door, f64)]) -> Table {
    let mut table = Table::new(
        "Costs in the steady state at window 1 (system calls counted with ptrace), and of an idle server",
        vec![
            Column::new("door", "door"),
            Column::with_decimals("server_syscalls_per_op", "server system calls/op", 3),
            Column::with_decimals("client_syscalls_per_op", "client system calls/op", 3),
            Column::with_decimals("server_allocations_per_op", "server allocations/op", 4),
            Column::with_decimals("client_allocations_per_op", "client allocations/op", 4),
            Column::with_decimals("idle_cpu_percent", "idle CPU %", 2),
        ],
    );
    for cost in costs {
        let idle = idle.iter().find(|(door, _)| *door == cost.door).map(|(_, share)| share * 100.0);
        table.push(vec![
            cost.door.to_string().into(),
            cost.server_syscalls_per_op.into(),
            cost.client_syscalls_per_op.into(),
            cost.server_allocations_per_op.into(),
            cost.client_allocations_per_op.into(),
            idle.into(),
        ]);
    }
    table
}

pub(super) fn crash_table(crashes: &[Crash]) -> Table {
    let mut table = Table::new(
        "A server killed (SIGKILL) under load and started again at the same address",
        vec![
            Column::new("door", "door"),
            Column::new("window", "window"),
            Column::new("answered", "answered before"),
            Column::new("failed", "failed calls"),
            Column::with_decimals("noticed_ms", "noticed after ms", 2),
            Column::with_decimals("restarted_ms", "server back after ms", 2),
            Column::with_decimals("reconnected_ms", "reconnect ms", 2),
            Column::new("verified_after", "verified after"),
        ],
    );
    for crash in crashes {
        table.push(vec![
            crash.door.to_string().into(),
            u64::from(crash.window).into(),
            crash.answered.into(),
            crash.failed.into(),
            crash.noticed_ms.into(),
            crash.restarted_ms.into(),
            crash.reconnected_ms.into(),
            crash.verified_after.into(),
        ]);
    }
    table
}

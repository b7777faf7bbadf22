//! Tables of the main benchmark.

use super::super::env::load_condition;
use super::crash::Crash;
use super::figures::{Figure, Sample};
use super::steady::Costs;
use super::{FrontEnd, KvMainPlan};
use crate::baseline::BaselineResult;
use crate::foreign_store::ForeignStore;
use crate::measure::{RoundTrips, Spread};
use crate::report::{self, Cell, Column, Conditions, Table};
use farcall_link::BatchSizing;
use std::ops::RangeInclusive;

pub(super) const TITLE: &str = "One key-value store behind several front ends, between two processes";

/// Meaning of the last two columns of the main table.
pub(super) const VERBS_NOTE: &str = "Verbs: all WRITEs, READs and SENDs of both ends, for each operation; over sockets, \
     requests sent together with their replies. Empty READs: those among them that found no result yet. Each is \
     in-bound work of the server's RNIC; here the client's processor executes them, and what they cost the server is not \
     measured.";

/// Meaning of the table of READs.
pub(super) const READS_NOTE: &str = "READs a GET, whatever else a workload does. Published: RF-RPC and HERD, on ConnectX-3 \
     between machines; HERD says of FaRM that a value out of the table takes one more READ.";

pub(super) fn conditions(plan: &KvMainPlan) -> Conditions {
    let mut conditions = plan.env.conditions();
    let provider = format!(
        "{} (RC; uc-rpc: UC; herd: UC and UD; ud-rpc: UD); sockets: kernel TCP on loopback and Unix streams",
        plan.reach.nic.provider
    );
    conditions.push("provider", provider);
    let threads = format!(
        "1 server thread, {} client process(es) of one thread and {} connection(s)",
        plan.clients, plan.connections
    );
    conditions.push("threads", threads);
    for store in [ForeignStore::Memcached, ForeignStore::Redis] {
        if plan.front_ends.iter().any(|it| matches!(it, FrontEnd::Foreign(of, _) if *of == store)) {
            conditions.push(store.to_string(), format!("{}, one thread, in memory only", store.version()));
        }
    }
    conditions.push("load", load_condition(plan.rate));
    conditions.push(
        "records",
        format!(
            "{} with {} B keys and {} values; every value read is verified{}",
            plan.records,
            plan.shape.key_len_bytes(),
            sizes(plan.shape.values_len_bytes()),
            // The order of several writers is unknown.
            if plan.clients > 1 { ", its version is not" } else { "" }
        ),
    );
    conditions
}

fn sizes(lens_bytes: RangeInclusive<usize>) -> String {
    let (min, max) = lens_bytes.into_inner();
    if min == max { format!("{max} B") } else { format!("{min} to {max} B") }
}

pub(super) fn main_table(figures: &[Figure], limits: &[BaselineResult]) -> Table {
    let mut lead = vec![
        Column::new("front_end", "front end"),
        Column::new("workload", "YCSB"),
        Column::new("window", "window"),
    ];
    let has_batches = figures.iter().any(|figure| figure.batch.is_some());
    lead.extend(has_batches.then(|| Column::new("batch", "batch")));
    let shown: [report::Figure<Sample>; 9] = [
        (Column::new("ops_per_second", "ops/s"), |sample| sample.load.ops_per_second()),
        (Column::median("p50_us", "p50 µs", 2), |sample| sample.load.latency.p50_ns as f64 / 1e3),
        (Column::median("p99_us", "p99 µs", 2), |sample| sample.load.latency.p99_ns as f64 / 1e3),
        (Column::median("p999_us", "p99.9 µs", 2).wide(), |sample| sample.load.latency.p999_ns as f64 / 1e3),
        (Column::median("server_cpu_us_per_op", "server µs", 3), |sample| {
            sample.us_per_op(sample.server_cpu)
        }),
        (Column::median("client_cpu_us_per_op", "client\nµs", 3).wide(), |sample| {
            sample.us_per_op(sample.client_cpu)
        }),
        (Column::median("ops_per_server_core_second", "ops/server\ncore s", 0).wide(), |sample| {
            1e6 / sample.us_per_op(sample.server_cpu)
        }),
        (Column::median("verbs_per_op", "verbs", 3), |sample| sample.verbs_per_op),
        (Column::median("empty_reads_per_op", "empty\nREADs", 3).wide(), |sample| sample.empty_reads_per_op),
    ];
    let title = "Speed; µs of the server's CPU and verbs are for each operation";
    let mut table = Table::of_figures(title, lead, &shown);
    for figure in figures {
        let workload = format!("{} {}", figure.workload, figure.distribution);
        let mut lead =
            vec![figure.front_end.to_string().into(), workload.into(), u64::from(figure.window).into()];
        lead.extend(has_batches.then(|| figure.batch.map_or(Cell::None, batch_cell)));
        table.push_figures(lead, &shown, &figure.samples);
    }
    let bounds: [fn(&RoundTrips) -> f64; 4] = [
        |limit| limit.per_second,
        |limit| limit.latency.p50_ns as f64 / 1e3,
        |limit| limit.latency.p99_ns as f64 / 1e3,
        |limit| limit.latency.p999_ns as f64 / 1e3,
    ];
    if limits.is_empty() {
        return table;
    }
    let mut row = vec!["bare shared memory".into(), Cell::None, 1u64.into()];
    row.extend(has_batches.then_some(Cell::None));
    row.extend(bounds.map(|bound| Spread::of(limits.iter().map(|limit| bound(&limit.round_trips))).into()));
    row.resize(table.columns.len(), Cell::None);
    table.push(row);
    table
}

/// Formats a batch size as the command-line option does.
fn batch_cell(batch: BatchSizing) -> Cell {
    match batch {
        BatchSizing::Fixed(size) => size.to_string().into(),
        BatchSizing::Automatic { latency_max_us, .. } => format!("auto:{latency_max_us}").into(),
    }
}

/// Returns the cost of GETs of stores that are READ, next to the published values. `None` if no such store was
/// measured.
pub(super) fn reads_table(figures: &[Figure]) -> Option<Table> {
    let lead = vec![
        Column::new("front_end", "store"),
        Column::new("workload", "YCSB"),
        Column::new("window", "window"),
    ];
    let shown: [report::Figure<Sample>; 4] = [
        (Column::with_decimals("reads_per_get", "READs\na GET", 3), |sample| sample.per_get(|it| it.reads)),
        (Column::with_decimals("torn_per_million_gets", "torn of\n10⁶ GETs", 1), |sample| {
            1e6 * sample.per_get(|it| it.torn)
        }),
        (Column::with_decimals("moved_per_million_gets", "moved of\n10⁶ GETs", 1), |sample| {
            1e6 * sample.per_get(|it| it.moved)
        }),
        (Column::with_decimals("gets_by_call_per_million", "by call of\n10⁶ GETs", 1), |sample| {
            1e6 * sample.per_get(|it| it.gets_by_call)
        }),
    ];
    let mut table = Table::of_figures("GETs that are READs", lead, &shown);
    table.columns.push(Column::with_decimals("published_reads_rf_rpc", "RF-RPC\nsays", 1));
    table.columns.push(Column::with_decimals("published_reads_herd", "HERD\nsays", 1));
    for figure in figures {
        let FrontEnd::Rival(rival) = figure.front_end else { continue };
        let workload = format!("{} {}", figure.workload, figure.distribution);
        let mut row: Vec<Cell> = vec![rival.name().into(), workload.into(), u64::from(figure.window).into()];
        row.extend(
            shown.iter().map(|(_, figure_of)| Cell::from(Spread::of(figure.samples.iter().map(figure_of)))),
        );
        row.extend(rival.published_reads_a_get().map(Cell::from));
        table.push(row);
    }
    (!table.rows().is_empty()).then_some(table)
}

pub(super) fn costs_table(costs: &[Costs], idle: &[(FrontEnd, f64)]) -> Table {
    let mut table = Table::new(
        "Costs of an operation at window 1 (system calls counted with ptrace), and of an idle server",
        vec![
            Column::new("front_end", "front end"),
            Column::with_decimals("server_syscalls_per_op", "server\nsyscalls", 3),
            Column::with_decimals("client_syscalls_per_op", "client\nsyscalls", 3),
            Column::with_decimals("server_allocations_per_op", "server\nallocations", 4),
            Column::with_decimals("client_allocations_per_op", "client\nallocations", 4),
            Column::with_decimals("idle_cpu_percent", "idle\nCPU %", 2),
        ],
    );
    for cost in costs {
        let idle =
            idle.iter().find(|(front_end, _)| *front_end == cost.front_end).map(|(_, share)| share * 100.0);
        table.push(vec![
            cost.front_end.to_string().into(),
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
            Column::new("front_end", "front end"),
            Column::new("window", "window"),
            Column::new("answered", "answered\nbefore"),
            Column::new("failed", "failed\ncalls"),
            Column::with_decimals("noticed_ms", "noticed\nafter ms", 2),
            Column::with_decimals("restarted_ms", "server back\nafter ms", 2),
            Column::with_decimals("reconnected_ms", "reconnect\nms", 2),
            Column::new("verified_after", "verified\nafter"),
        ],
    );
    for crash in crashes {
        table.push(vec![
            crash.front_end.to_string().into(),
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

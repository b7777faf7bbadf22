//! A: RF-RPC and its key-value store Jakiro (TPDS 2018).

mod figure_1;
mod figure_10;
mod figure_11;
mod figure_12;
mod figure_13;
mod figure_14;
mod figure_15;
mod figure_16;
mod figure_2;
mod figure_5;
mod figure_7;
mod figure_8;
mod figure_9;
mod section_2_4;
mod section_5_2;
mod table_3;
mod table_4;

use crate::experiments::calls::CallTask;
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::figures::experiment::{Experiment, Paper};
use crate::workload::{Distribution, Workload};
use farcall_link::BatchSizing;

const PAPER: Paper = Paper {
    letter: 'A',
    title: "RF-RPC: Remote Fetching RPC Paradigm for RDMA-Enabled Network",
    setup: "Eight machines, each with two 8-core Xeon E5-2640 v2 (2.0 GHz) and a ConnectX-3 (40 Gb/s InfiniBand); one is \
            the server.",
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] = &[
    &figure_1::EXPERIMENT,
    &figure_2::EXPERIMENT,
    &section_2_4::EXPERIMENT,
    &figure_5::EXPERIMENT,
    &section_5_2::EXPERIMENT,
    &figure_7::EXPERIMENT,
    &figure_8::EXPERIMENT,
    &figure_9::EXPERIMENT,
    &figure_10::EXPERIMENT,
    &figure_11::EXPERIMENT,
    &figure_12::EXPERIMENT,
    &figure_13::EXPERIMENT,
    &figure_14::EXPERIMENT,
    &figure_15::EXPERIMENT,
    &table_3::EXPERIMENT,
    &table_4::EXPERIMENT,
    &figure_16::EXPERIMENT,
];

/// Names of the systems' curves in the paper.
const JAKIRO: &str = "Jakiro";
const SERVER_REPLY: &str = "ServerReply";
const MEMCACHED: &str = "RDMA-Memcached";
const WITHOUT_SWITCH: &str = "Jakiro w/o Switch";

/// Differences between the paper's store and Farcall's, which apply to every experiment with the store.
const STORE_DIFFERS: &str = "The store of this project (preset rf-rpc for Jakiro, server-reply for ServerReply, \
                             rdma-memcached for RDMA-Memcached) with one server thread and 20,000 records; all \
                             connections are run by one client thread; each has a core.";
/// Differences between the paper's batches and Farcall's.
const BATCH_DIFFERS: &str = "Calls of an echo service, 64 bytes there and 8 back, on one connection; as many under way as \
                             fill a batch, so that the time until the last of them is done is their latency. A batch \
                             holds 2,048 bytes at most: of these calls less than 30.";
const RF_RPC_BATCH: &str = "RF-RPC-batch";
const SERVER_REPLY_BATCH: &str = "server-reply-batch";
/// Numbers of calls per batch.
const BATCHES: [u16; 5] = [2, 4, 8, 16, 24];

/// Returns calls with a window of exactly one batch.
fn batched(preset: &'static str, size: u16) -> CallTask {
    CallTask { window: size.into(), batch: Some(BatchSizing::Fixed(size)), ..CallTask::small(preset) }
}

/// Returns the paper's default load on Farcall's store: 95 % GET, one outstanding operation on each connection.
fn usual_load(front_end: FrontEnd, distribution: Distribution, connections: u32) -> KvTask {
    KvTask { front_end, workload: Workload::B, distribution, window: 1, connections, batch: None }
}

/// Returns the same load in batches, with a window of exactly one batch on each connection.
fn batched_load(front_end: FrontEnd, distribution: Distribution, connections: u32, size: u16) -> KvTask {
    let batch = Some(BatchSizing::Fixed(size));
    KvTask { window: size.into(), batch, ..usual_load(front_end, distribution, connections) }
}

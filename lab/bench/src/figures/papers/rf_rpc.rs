//! A: RF-RPC and its key-value store Jakiro (TPDS 2018).

use super::lone_gets;
use crate::experiments::calls::{CallTask, Callee, Topology};
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::figures::experiment::{Axis, Experiment, Paper, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{READ_ALONE, Trial, grid, levels, sweep, sweep_beside};
use crate::rivals::Rival;
use crate::rnic::{Direction, Inlining, Operation, RnicTask, RnicTest, Tuning};
use crate::workload::{Distribution, Workload};
use farcall_link::{BatchSizing, MemoryPolicy, Transport};

const PAPER: Paper = Paper {
    letter: 'A',
    title: "RF-RPC: Remote Fetching RPC Paradigm for RDMA-Enabled Network",
    setup: "Eight machines, each with two 8-core Xeon E5-2640 v2 (2.0 GHz) and a ConnectX-3 (40 Gb/s InfiniBand); one \
            is the server.",
    file: file!(),
};

/// Experiment without content, for struct updates.
const BLANK: Experiment = Experiment::of(&PAPER);

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "A.1",
        place: "figure 1, section 2.2",
        title: "In-bound and out-bound operations by size",
        x: Axis::logarithmic("data size", "B"),
        y: Axis::linear("operations", "million/s"),
        published: &[
            published(IN_BOUND, &[(None, 11.26)], "section 2.2: peak of in-bound READs"),
            published(OUT_BOUND, &[(None, 2.11)], "section 2.2: peak of out-bound WRITEs"),
        ],
        statements: &[
            "In-bound peak about five times the out-bound one; alike above 2 KB, where bandwidth limits both.",
            "Below L = 256 B size does not matter, above H = 1024 B bandwidth does (section 3.2).",
        ],
        conditions: "Four threads on each client machine; every thread waits for the completion of one operation \
                     before the next.",
        differs: &[
            "In-bound operations are issued by clients, out-bound ones by the server. On one host one process of one \
             thread issues and one is passive; the asymmetry of an RNIC needs two hosts, where two client processes \
             have one of the server half each.",
            "Four queue pairs a process, one operation in flight on each, in turn.",
        ],
        trials: || {
            let curves = [
                (IN_BOUND, (Operation::Read, Direction::InBound)),
                (OUT_BOUND, (Operation::Write, Direction::OutBound)),
            ];
            // The connections represent the client threads with one outstanding operation each.
            let (window, connections) = (1, 4);
            let tuning = Tuning {
                window,
                chain: 1,
                signal_every: 1,
                inlining: Inlining::UpTo(0),
                qps: connections,
                active_qps: connections,
                ..Tuning::LATENCY
            };
            let lens_bytes = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
            sweep(&lens_bytes, &curves, Sample::mops, |len_bytes, (operation, direction)| {
                (throughput(operation, len_bytes, tuning), direction)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.2",
        place: "figure 2, sections 2.3 and 5.2",
        title: "Requests by the operations that each of them needs (server-bypass)",
        x: Axis::linear("operations for a request", ""),
        y: Axis::linear("requests", "million/s"),
        published: &[published(
            "Pilaf",
            &[(Some(3.2), 3.5)],
            "section 5.2: Pilaf’s peak on this cluster, calculated (95 % GET, uniform)",
        )],
        statements: &[
            "With write-intensive workloads, where conflicts are many, the throughput falls below 1 MOPS.",
        ],
        conditions: "21 client threads, one server.",
        differs: &[
            "One client, one GET after the other; the number of READs is what the store farcall_kv::pilaf needs, \
             three quarters full and without writers, not a choice: section 5.2 shows it.",
        ],
        trials: || {
            let read = RnicTask::latency(Operation::Read, Transport::Rc, 64, Tuning::LATENCY);
            let pilaf = lone_gets(FrontEnd::Rival(Rival::Pilaf));
            vec![
                Trial::at(READ_ALONE, 1.0, read, Sample::mops),
                Trial::level("Pilaf, any number of READs", pilaf, Sample::mops),
            ]
        },
        ..BLANK
    },
    Experiment {
        id: "A.section-2.4",
        place: "section 2.4",
        title: "Latency of WRITE by size",
        x: Axis::logarithmic("data size", "B"),
        y: Axis::linear("mean latency", "µs"),
        published: &[published(
            WRITE,
            &[(Some(8.0), 1.12), (Some(256.0), 2.04)],
            "section 2.4: from 8 to 256 bytes",
        )],
        statements: &["Latency grows slowly with size: so batches pay."],
        conditions: "The time until the data is written at its destination.",
        differs: &["The time until the initiator’s completion."],
        trials: || {
            let lens_bytes = [8, 16, 32, 64, 128, 256];
            let tuning = Tuning { signal_every: 1, ..Tuning::LATENCY };
            sweep(&lens_bytes, &[(WRITE, ())], Sample::mean_us, |len_bytes, ()| RnicTask {
                test: RnicTest::Completion,
                ..throughput(Operation::Write, len_bytes, tuning)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.5",
        place: "figure 5, section 3.2",
        title: "Repeated fetching and server-reply by process time",
        x: Axis::linear("process time", "µs"),
        y: Axis::linear("calls", "million/s"),
        statements: &[
            "From P = 7 µs on, fetching is at most 10 % faster than server-reply, while the client may use more than \
             twice the processor time: so N is 5.",
        ],
        conditions: "F and S are 1 byte, so that one READ brings a result.",
        differs: &[
            "One server thread, so that no more than 1/P calls a second are possible; the presets fetch and \
             server-reply, results of no bytes, four connections run by one client thread.",
            "In shared memory a reply costs the server what a fetch costs the client: nothing here is bound by an \
             RNIC’s out-bound operations.",
        ],
        trials: || {
            let curves = [("repeated remote fetching", "fetch"), (SERVER_REPLY, "server-reply")];
            by_process_time(&[0, 1, 2, 3, 4, 5, 7, 9, 12], &curves)
        },
        ..BLANK
    },
    Experiment {
        id: "A.section-5.2",
        place: "section 5.2",
        title: "Operations for each request",
        x: Axis::linear("connections", ""),
        y: Axis::linear("WRITEs, READs and SENDs of both ends", "for each request"),
        published: &[
            published(JAKIRO, &[(Some(35.0), 2.005)], "section 5.2: round trips, 35 clients"),
            published(PILAF, &[(None, 3.2)], "section 5.2: READs of a GET, without conflicts"),
        ],
        conditions: "16-byte keys, 32-byte values, 95 % GET, uniform; F = 256 bytes.",
        differs: &[
            STORE_DIFFERS,
            "Wake-ups and empty READs count; with one connection a READ often comes before the result is there.",
            "Pilaf is the store farcall_kv::pilaf: three quarters full, one client that only GETs, so without \
             conflicts.",
        ],
        trials: || {
            let pilaf = Trial::level(PILAF, lone_gets(FrontEnd::Rival(Rival::Pilaf)), Sample::verbs_per_call);
            sweep_beside([pilaf], &[1, 8, 35], &STORES, Sample::verbs_per_call, |connections, front_end| {
                usual_load(front_end, Distribution::Uniform, connections)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.7",
        place: "figure 7, section 5.3.1",
        title: "Throughput by server threads",
        x: Axis::linear("server threads", ""),
        y: Axis::linear("requests", "million/s"),
        published: &[
            published(JAKIRO, &[(None, 5.5)], "section 5.3.1: peak, from 3 threads on"),
            published(SERVER_REPLY, &[(None, 2.1)], "section 5.3.1: peak"),
            published(MEMCACHED, &[(None, 1.3)], "section 5.3.1: peak"),
            published(
                "HERD",
                &[(None, 8.8)],
                "section 5.3: in the same environment; over UD, which is not reliable",
            ),
        ],
        statements: &[
            "With more than 6 server threads ServerReply gets slower: out-bound operations do not scale.",
        ],
        conditions: "35 client threads on seven machines, 16-byte keys, 32-byte values, 95 % GET, uniform.",
        differs: &[
            STORE_DIFFERS,
            "16 connections, one request in flight on each.",
            "One server thread only: more of them need cores of their own, in addition to those of the clients.",
        ],
        trials: || {
            sweep(&[1_u32], &STORES, Sample::mops, |_, front_end| {
                usual_load(front_end, Distribution::Uniform, PEAK_CONNECTIONS)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.8",
        place: "figure 8, section 5.3.2",
        title: "Latencies at peak throughput",
        x: Axis::linear("share of requests", "%"),
        y: Axis::logarithmic("latency, at most", "µs"),
        published: &[
            published(JAKIRO, &[(Some(99.0), 7.0)], "section 5.3.2: about 99 % are below 7 µs"),
            published(JAKIRO_MEAN, &[(None, 5.78)], "section 5.3.2"),
            published(SERVER_REPLY_MEAN, &[(None, 12.06)], "section 5.3.2"),
            published(MEMCACHED_MEAN, &[(None, 14.76)], "section 5.3.2"),
        ],
        statements: &[
            "Up to the 15th percentile ServerReply is faster; its 50th and 99th are slower than Jakiro’s.",
            "0.2 % of Jakiro’s calls take more than two round trips: 15 to 17 µs.",
        ],
        conditions: "Each system at its peak: 35 client threads, 16-byte keys, 32-byte values, 95 % GET, uniform.",
        differs: &[
            STORE_DIFFERS,
            "16 connections in one thread: a latency holds the time in which that thread serves the other connections.",
        ],
        trials: || {
            let mut trials = Vec::from(Trial::limits_of_one(Sample::mean_us));
            for (mean, (series, front_end)) in
                [JAKIRO_MEAN, SERVER_REPLY_MEAN, MEMCACHED_MEAN].into_iter().zip(STORES)
            {
                let task = usual_load(front_end, Distribution::Uniform, PEAK_CONNECTIONS);
                trials.extend([Trial::distribution(series, task), Trial::level(mean, task, Sample::mean_us)]);
            }
            trials
        },
        ..BLANK
    },
    Experiment {
        id: "A.9",
        place: "figure 9, section 5.3.2",
        title: "The switch: throughput by process time",
        x: Axis::linear("process time", "µs"),
        y: Axis::linear("calls", "million/s"),
        statements: &[
            "Below 7 µs Jakiro is 30 % to 320 % faster than ServerReply.",
            "From 7 µs on both are comparable: RF-RPC switches to server-reply after five failed fetches in each of \
             two calls.",
        ],
        conditions: "16 server threads, 35 client threads; the process time is a loop on the time stamp counter.",
        differs: &[
            "One server thread, so that no more than 1/P calls a second are possible; four connections run by one \
             client thread; the presets rf-rpc (Jakiro), fetch (without the switch) and server-reply.",
            "Calls of an echo service, not of a store.",
        ],
        trials: || {
            let curves = [(JAKIRO, "rf-rpc"), (WITHOUT_SWITCH, "fetch"), (SERVER_REPLY, "server-reply")];
            by_process_time(&[1, 2, 3, 5, 7, 9, 12], &curves)
        },
        ..BLANK
    },
    Experiment {
        id: "A.10",
        place: "figure 10, section 5.4",
        title: "Unsignalled and inlined requests",
        x: Axis::linear("0: neither; 1: unsignalled; 2: inlined, too", ""),
        y: Axis::linear("operations", "million/s"),
        statements: &[
            "Both together bring nearly 30 % in RDMA-Write and RF-RPC; unsignalled requests bring more than inlined \
             ones.",
        ],
        conditions: "In RDMA-Write clients write to the server.",
        differs: &[
            "WRITEs of 32 bytes, 32 outstanding on one queue pair; calls of 64 bytes there and 8 back, one at a time \
             on one connection, of which only the request can be inlined.",
            "A call’s request that is not inlined is always signalled here, so calls have no step 1.",
            "RF-RPC with batches is not measured: batches are longer than what is inlined.",
        ],
        trials: unsignalled_and_inlined,
        ..BLANK
    },
    Experiment {
        id: "A.11",
        place: "figure 11, section 5.5",
        title: "Several queue pairs polled by one server thread",
        x: Axis::linear("queue pairs of the thread", ""),
        y: Axis::linear("requests", "million/s"),
        published: &[published(
            UNIFORM,
            &[(None, 4.73)],
            "section 5.5: 14 threads with 3 queue pairs each, together",
        )],
        statements: &[
            "About 1.51 times as much as with a thread for each queue pair (figure 12).",
            "Skewed keys load threads unevenly, but the sum is the same.",
        ],
        conditions: "42 clients, 14 server threads, 32-byte values, 95 % GET.",
        differs: &[
            STORE_DIFFERS,
            "One server thread, with 1 to 42 queue pairs: 14 threads need as many cores. So unevenly loaded threads \
             are not measured, only a skew of keys within one.",
        ],
        trials: || {
            let curves = [(UNIFORM, Distribution::Uniform), ("Zipf .99", Distribution::Zipfian)];
            sweep(&[1, 3, 14, 42], &curves, Sample::mops, |qps, distribution| {
                usual_load(FrontEnd::RfRpc, distribution, qps)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.12",
        place: "figure 12, section 5.5",
        title: "A server thread for each queue pair",
        x: Axis::linear("queue pairs", ""),
        y: Axis::linear("requests", "million/s"),
        statements: &["The threads of figure 11 are together about 1.51 times as fast."],
        conditions: "42 clients, 42 server threads, 32-byte values, 95 % GET, uniform and Zipf .99; what each thread \
                     serves.",
        differs: &[
            "Calls of an echo service, 64 bytes there and 8 back, one under way on each connection; all connections \
             are run by one client thread.",
            "All server threads share one processor, so that more of them cost switches between them, and bring \
             nothing. What all serve together.",
        ],
        trials: || {
            let curves = [("one thread for all", false), ("a thread for each", true)];
            sweep(&[1_u16, 3, 14, 42], &curves, Sample::mops, |qps, is_spread| {
                let topology =
                    if is_spread { Topology::Spread { responders: qps } } else { Topology::Private };
                CallTask { connections: qps.into(), topology, ..CallTask::small("rf-rpc") }
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.13",
        place: "figure 13, section 5.6",
        title: "Throughput of batched calls by latency",
        x: Axis::linear("latency", "µs"),
        y: Axis::linear("requests", "million/s"),
        published: &[
            published(
                RF_RPC_BATCH,
                &[(None, 62.7), (Some(12.63), 45.80)],
                "section 5.6: peak, and with batches of 24",
            ),
            published(SERVER_REPLY_BATCH, &[(Some(12.63), 21.67)], "section 5.6: at the same latency"),
        ],
        statements: &[
            "Batches of 4 give 3.9 times the throughput of RF-RPC for 8 % more latency.",
            "RF-RPC-auto-batch comes near the best possible throughput under each latency limit (95 % of calls below \
             it).",
        ],
        conditions: "16 server processes, 35 client processes, batches of 2 to 96, 16-byte keys, 32-byte values.",
        differs: &[
            BATCH_DIFFERS,
            "Batches of 2 to 24; each point is one repetition. The automatic size is not measured here.",
        ],
        trials: || batches_by_latency(1),
        ..BLANK
    },
    Experiment {
        id: "A.14",
        place: "figure 14, section 5.6",
        title: "Latency by batch size",
        x: Axis::linear("calls in a batch", ""),
        y: Axis::linear("latency", "µs"),
        published: &[published(
            RF_RPC_BATCH,
            &[(Some(4.0), 6.17)],
            "section 5.6; the text gives the latency of batches of 24 with figure 13",
        )],
        statements: &["Nearly linear; server-reply-batch is 18 % to 100 % slower."],
        conditions: "As in figure 13.",
        differs: &[BATCH_DIFFERS],
        trials: || {
            let limits = Trial::limits_of_one(Sample::mean_us);
            sweep_beside(
                limits,
                &BATCHES,
                &BATCHED,
                |sample| sample.round_mean_us,
                |size, preset| batched(preset, size),
            )
        },
        ..BLANK
    },
    Experiment {
        id: "A.15",
        place: "figure 15, section 5.6",
        title: "Throughput of batched calls by latency, skewed",
        x: Axis::linear("latency", "µs"),
        y: Axis::linear("requests", "million/s"),
        statements: &["Skew (Zipf .99) changes little."],
        conditions: "As in figure 13.",
        differs: &[
            STORE_DIFFERS,
            "Batches of 2 to 24 on one connection, as many operations under way as fill one; each point is one \
             repetition. The automatic size is not measured here.",
        ],
        trials: || {
            let curves = [
                (RF_RPC_BATCH, (FrontEnd::RfRpc, Distribution::Zipfian)),
                ("RF-RPC-batch, uniform", (FrontEnd::RfRpc, Distribution::Uniform)),
                (SERVER_REPLY_BATCH, (FrontEnd::ServerReply, Distribution::Zipfian)),
            ];
            grid(
                Trial::limits_of_one(Sample::mops),
                &BATCHES,
                &curves,
                |series, size, (front_end, distribution)| {
                    let task = batched_load(front_end, distribution, 1, size);
                    Trial::scattered(series, task, |sample| (sample.mean_us(), sample.mops()))
                },
            )
        },
        ..BLANK
    },
    Experiment {
        id: "A.table-3",
        place: "table 3, section 5.7",
        title: "Without batches and with batches of 16, on ConnectX-3 and ConnectX-4",
        x: Axis::linear("0: without batches; 1: with batches of 16", ""),
        y: Axis::linear("requests", "million/s"),
        published: &[
            published(SERVER_REPLY, &[(Some(0.0), 1.66), (Some(1.0), 10.1)], "table 3: on ConnectX-3"),
            published(JAKIRO, &[(Some(0.0), 3.05), (Some(1.0), 12.3)], "table 3: on ConnectX-3"),
            published("ServerReply, ConnectX-4", &[(Some(0.0), 2.26), (Some(1.0), 16.7)], "table 3"),
            published("Jakiro, ConnectX-4", &[(Some(0.0), 4.48), (Some(1.0), 22.6)], "table 3"),
        ],
        statements: &[
            "Mean latency of Jakiro 3.60 µs on ConnectX-4 and 5.06 µs on ConnectX-3; of ServerReply 6.77 µs on \
             ConnectX-4.",
        ],
        conditions: "Five machines with one 4-core Xeon E5-2407 v2 (2.4 GHz); four server processes, 16 clients on \
                     four machines; 32-byte values, 95 % GET, uniform.",
        differs: &[
            STORE_DIFFERS,
            "One RNIC, so only what batches are worth on it is measured. Four connections, on each one operation \
             under way, or as many as fill a batch.",
        ],
        trials: || {
            let batches = [(0.0, None), (1.0, Some(16))];
            let curves = [(JAKIRO, FrontEnd::RfRpc), (SERVER_REPLY, FrontEnd::ServerReply)];
            sweep(&batches, &curves, Sample::mops, |(_, batch), front_end| match batch {
                None => usual_load(front_end, Distribution::Uniform, BUSY_CONNECTIONS),
                Some(size) => batched_load(front_end, Distribution::Uniform, BUSY_CONNECTIONS, size),
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.table-4",
        place: "table 4, section 5.8",
        title: "RoCE and InfiniBand, one client thread and one server thread",
        x: Axis::linear("1: RoCE; 2: InfiniBand", ""),
        y: Axis::linear("requests", "million/s"),
        published: &[
            published(SERVER_REPLY, &[(Some(1.0), 1.21), (Some(2.0), 1.30)], "table 4"),
            published(RF_RPC, &[(Some(1.0), 1.72), (Some(2.0), 1.85)], "table 4"),
        ],
        statements: &[
            "The gap is smaller over RoCE, whose link layer has nothing that favours out-bound operations.",
        ],
        conditions: "ConnectX-3 VPI as 10 Gb/s Ethernet and as InfiniBand, three machines.",
        differs: &[
            STORE_DIFFERS,
            "One RNIC, neither of both: a level each, to compare the two systems and not the networks. 16 operations \
             under way on one connection.",
        ],
        trials: || {
            let curves = [(RF_RPC, FrontEnd::RfRpc), (SERVER_REPLY, FrontEnd::ServerReply)];
            // The paper does not state the number of outstanding operations; its figures are too high for a single one.
            levels(Trial::limits_of_one(Sample::mops), &curves, Sample::mops, |front_end| KvTask {
                window: 16,
                ..usual_load(front_end, Distribution::Uniform, 1)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "A.16",
        place: "figure 16, section 5.8",
        title: "Throughput of batched calls by latency, over RoCE",
        x: Axis::linear("latency", "µs"),
        y: Axis::linear("requests", "million/s"),
        statements: &[
            "Small batches raise throughput at little latency; large ones only latency. Throughput is lower than over \
             InfiniBand: 10 Gb/s, and two client machines.",
        ],
        conditions: "RoCE on ConnectX-3 (10 Gb/s Ethernet), two client machines with 8 clients each, 8 server \
                     processes, batches of 2 to 96.",
        differs: &[
            BATCH_DIFFERS,
            "Two client processes on one processor, and no Ethernet between them and the server: only what batches \
             are worth is measured, not what RoCE costs. Batches of 2 to 24; each point is one repetition.",
        ],
        trials: || batches_by_latency(2),
        ..BLANK
    },
];

/// Names of the systems' curves in the paper.
const JAKIRO: &str = "Jakiro";
const SERVER_REPLY: &str = "ServerReply";
const MEMCACHED: &str = "RDMA-Memcached";
const RF_RPC: &str = "RF-RPC";
const WITHOUT_SWITCH: &str = "Jakiro w/o Switch";

const PILAF: &str = "Pilaf, GET";
const JAKIRO_MEAN: &str = "Jakiro, mean";
const SERVER_REPLY_MEAN: &str = "ServerReply, mean";
const MEMCACHED_MEAN: &str = "RDMA-Memcached, mean";
/// Names of other curves.
const IN_BOUND: &str = "in-bound (READ)";
const OUT_BOUND: &str = "out-bound (WRITE)";
const WRITE: &str = "WRITE until its completion";
const UNIFORM: &str = "uniform";
/// Stores that the paper compares.
const STORES: [(&str, FrontEnd); 3] =
    [(JAKIRO, FrontEnd::RfRpc), (SERVER_REPLY, FrontEnd::ServerReply), (MEMCACHED, FrontEnd::RdmaMemcached)];
/// Number of connections that is sufficient to keep the server's thread busy.
const BUSY_CONNECTIONS: u32 = 4;
/// Number of connections at the peak; half of them already keep a server thread busy.
const PEAK_CONNECTIONS: u32 = 16;

/// Differences between the paper's store and Farcall's, which apply to every experiment with the store.
const STORE_DIFFERS: &str = "The store of this project (preset rf-rpc for Jakiro, server-reply for ServerReply, \
                             rdma-memcached for RDMA-Memcached) with one server thread and 20,000 records; all \
                             connections are run by one client thread; each has a core.";
/// Differences between the paper's batches and Farcall's.
const BATCH_DIFFERS: &str = "Calls of an echo service, 64 bytes there and 8 back, on one connection; as many under \
                             way as fill a batch, so that the time until the last of them is done is their latency. A \
                             batch holds 2,048 bytes at most: of these calls less than 30.";
const RF_RPC_BATCH: &str = "RF-RPC-batch";
const SERVER_REPLY_BATCH: &str = "server-reply-batch";
/// Systems with batches, and their presets.
const BATCHED: [(&str, &str); 2] = [(RF_RPC_BATCH, "rf-rpc"), (SERVER_REPLY_BATCH, "server-reply")];
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

fn throughput(operation: Operation, len_bytes: usize, tuning: Tuning) -> RnicTask {
    RnicTask { operation, transport: Transport::Rc, test: RnicTest::Throughput, len_bytes, tuning }
}

/// Returns trials of calls whose execution takes a given number of microseconds, with a preset for each curve.
fn by_process_time(process_us: &[u32], curves: &[(&'static str, &'static str)]) -> Vec<Trial> {
    sweep(process_us, curves, Sample::mops, |us, preset| CallTask {
        callee: Callee::Work { us },
        connections: BUSY_CONNECTIONS,
        ..CallTask::small(preset)
    })
}

/// Returns trials of batched calls by `clients` processes: their throughput by their latency.
fn batches_by_latency(clients: u32) -> Vec<Trial> {
    grid(Trial::limits_of_one(Sample::mops), &BATCHES, &BATCHED, |series, size, preset| {
        let task = CallTask { clients, ..batched(preset, size) };
        Trial::scattered(series, task, |sample| (sample.round_mean_us, sample.mops()))
    })
}

/// Returns trials of the steps of figure 10: neither optimization, unsignalled requests, unsignalled and inlined
/// requests.
fn unsignalled_and_inlined() -> Vec<Trial> {
    // Sufficient for requests of 64 bytes with header and tail.
    let inline_max_bytes = 256;
    let steps = [(0, 1), (0, 16), (inline_max_bytes, 16)];
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for (step, (inline_max_bytes, signal_every)) in steps.into_iter().enumerate() {
        let tuning = Tuning {
            window: 32,
            chain: 1,
            signal_every: signal_every.into(),
            inlining: Inlining::UpTo(inline_max_bytes),
            ..Tuning::RATE
        };
        let write = throughput(Operation::Write, 32, tuning);
        trials.push(Trial::at("RDMA-Write", step as f64, write, Sample::mops));
        if signal_every == 1 || inline_max_bytes > 0 {
            let memory = Some(MemoryPolicy { inline_max_bytes, signal_every });
            let call = CallTask { memory, ..CallTask::small("rf-rpc") };
            trials.push(Trial::at(RF_RPC, step as f64, call, Sample::mops));
        }
    }
    trials
}

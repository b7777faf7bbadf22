//! B: a study of communication patterns (Datenbank-Spektrum 2020).

mod findings;

use crate::experiments::calls::{CallTask, Callee, Topology};
use crate::figures::experiment::{Axis, Experiment, Paper, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{Coordinate, Trial, grid, sweep, sweep_beside};
pub(super) use findings::FINDINGS;

pub(super) const PAPER: Paper = Paper {
    letter: 'B',
    title: "RDMA Communication Patterns: A Systematic Evaluation",
    setup: "Six nodes, each with two 14-core Xeon Gold 5120 and two ConnectX-5, one EDR switch; 64-byte requests, 4 \
            million responses, mean of 10 runs.",
    file: file!(),
};

/// Experiment without content, for struct updates.
const BLANK: Experiment = Experiment::of(&PAPER);

/// Many requesters and one responder: a panel for each response size.
const FIGURE_5: Experiment = Experiment {
    place: "figure 5, section 6",
    x: Axis::linear("requesters", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    conditions: "Eight requester threads on each of one to five nodes, private connections, one responder thread.",
    differs: &[DIFFERS],
    ..BLANK
};

/// Many requesters through a dispatcher: a panel for each response size.
const FIGURE_6: Experiment = Experiment {
    place: "figure 6, section 6",
    x: Axis::linear("requesters", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    conditions: "As in figure 5, with one connection for each node.",
    differs: &[DIFFERS, ONE_PROCESSOR, "One node, so one connection, whatever the number of requesters."],
    ..BLANK
};

/// Many requesters and several responders: a panel for each response size.
const FIGURE_8: Experiment = Experiment {
    place: "figure 8, section 7",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("bandwidth of all", "GB/s"),
    conditions: "90 requester threads on nine nodes, 2, 4 and 6 responder threads on each of three; every request \
                 goes to a random responder.",
    differs: &[DIFFERS, ONE_PROCESSOR, MANY_DIFFERS],
    ..BLANK
};

/// The same through dispatchers: a panel for each response size.
const FIGURE_10: Experiment = Experiment {
    place: "figure 10, section 7",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("bandwidth of all", "GB/s"),
    conditions: "As in figure 8, with one connection from each node to each responder.",
    differs: &[
        DIFFERS,
        ONE_PROCESSOR,
        MANY_DIFFERS,
        "One node of requesters, so one connection to each responder.",
    ],
    ..BLANK
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "B.section-4.1",
        place: "section 4.1",
        title: "One-to-one: 16 calls in flight, by number of connections",
        x: Axis::logarithmic("connections to the responder", ""),
        y: Axis::linear("calls", "million/s"),
        statements: &[
            "With more connections the RNIC switches between the states of queue pairs; a dispatcher has one for each \
             receiver.",
        ],
        conditions: "The paper measures one private connection for each pair of threads, or one of a dispatcher.",
        differs: &[
            DIFFERS,
            ONE_PROCESSOR,
            "Several queue pairs to one responder are several connections of one client. On an RNIC they are served \
             by several of its engines; here each is one more mailbox to look at.",
        ],
        trials: || {
            let curves = [
                ("WriteWrite, connections of the requester's thread", false),
                ("WriteWrite, connections of a dispatcher", true),
            ];
            // Outstanding calls on all connections together.
            let calls = 16;
            sweep(&[1_u16, 2, 4, 8, 16], &curves, Sample::mops, |connections, is_dispatched| {
                match is_dispatched {
                    false => CallTask {
                        window: calls / u32::from(connections),
                        ..responses("server-reply", 64, connections.into())
                    },
                    true => CallTask {
                        topology: Topology::Dispatcher { responders: 1, connections },
                        ..responses("server-reply", 64, calls)
                    },
                }
            })
        },
        ..BLANK
    },
    Experiment {
        id: "B.3a",
        place: "figure 3a, section 5",
        title: "One-to-one: bandwidth by response size",
        x: Axis::logarithmic("response", "B"),
        y: Axis::logarithmic("bandwidth", "GB/s"),
        statements: &[
            "64 and 256 B: SendSend is worst, WriteWrite best, by around 40 %.",
            "16 KB: 700 MB/s lie between WriteWrite and SendSend.",
            "4 MB: all reach the limit of bandwidth.",
        ],
        conditions: "One thread at each end, a private connection.",
        differs: &[
            DIFFERS,
            "Responses up to 16 KiB: longer ones go in pieces here, which the paper’s do not.",
        ],
        trials: || bandwidths(&RESPONSE_LENS_BYTES, |len_bytes, preset| responses(preset, len_bytes, 1)),
        ..BLANK
    },
    Experiment {
        id: "B.3b",
        place: "figure 3b, section 5",
        title: "One-to-one: median latency by response size",
        x: Axis::logarithmic("response", "B"),
        y: Axis::linear("median latency", "µs"),
        statements: &[
            "Up to 256 B all are below 4 µs, SendWrite and WriteWrite below 3 µs.",
            "16 KB: almost 2 µs lie between SendWrite/WriteWrite and SendSend/WriteSend.",
        ],
        conditions: "One thread at each end, a private connection.",
        differs: &[DIFFERS],
        trials: || {
            sweep(&RESPONSE_LENS_BYTES, &PATTERNS, Sample::p50_us, |len_bytes, preset| {
                responses(preset, len_bytes, 1)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "B.4a",
        place: "figure 4a, section 5",
        title: "One-to-one: what a byte costs the requester, by response size",
        x: Axis::logarithmic("response", "B"),
        y: Axis::logarithmic("processor time of the requester", "ns for each byte"),
        published: &[published(
            "the worst pattern, in instructions for each byte",
            &[(Some(64.0), 450.0)],
            "section 5: up to 450",
        )],
        statements: &["With larger responses the overhead is amortised."],
        conditions: "One thread at each end, a private connection.",
        differs: &[
            DIFFERS,
            "Processor time of the requester, in nanoseconds; the paper counts instructions, for which this program \
             asks no counter of the processor. The requester polls, so its time is that of whole calls.",
        ],
        trials: || costs_of_a_byte(|sample| sample.client_cpu_us_per_call),
        ..BLANK
    },
    Experiment {
        id: "B.4b",
        place: "figure 4b, section 5",
        title: "One-to-one: what a byte costs the responder, by response size",
        x: Axis::logarithmic("response", "B"),
        y: Axis::logarithmic("processor time of the responder", "ns for each byte"),
        statements: &[
            "For 64-byte messages up to 800 instructions for each byte; with larger responses the overhead is \
             amortised.",
        ],
        conditions: "One thread at each end, a private connection.",
        differs: &[DIFFERS, TIME_NOT_CYCLES],
        trials: || costs_of_a_byte(|sample| sample.server_cpu_us_per_call),
        ..BLANK
    },
    Experiment {
        id: "B.5-64",
        title: "N-to-one: bandwidth of responses of 64 B",
        published: &[
            published(
                SEND_SEND,
                &[(Some(16.0), 0.5)],
                "section 6: 64 and 256 B, without saying which of both",
            ),
            published(
                WRITE_WRITE,
                &[(Some(16.0), 1.2)],
                "section 6: 64 and 256 B, without saying which of both",
            ),
        ],
        statements: &["With more than 16 requesters nothing changes."],
        trials: || bandwidths(&REQUESTERS, |requesters, preset| responses(preset, 64, requesters)),
        ..FIGURE_5
    },
    Experiment {
        id: "B.5-4096",
        title: "N-to-one: bandwidth of responses of 4 KiB",
        published: &[
            published(SEND_WRITE, &[(None, 9.5)], "section 6: at most, from 16 requesters on"),
            published(SEND_SEND, &[(None, 8.0)], "section 6: at most, from 16 requesters on"),
        ],
        statements: &["WriteWrite and WriteSend reach the bandwidth of the RNIC with 16 requesters."],
        trials: || bandwidths(&REQUESTERS, |requesters, preset| responses(preset, 4096, requesters)),
        ..FIGURE_5
    },
    Experiment {
        id: "B.5-16384",
        title: "N-to-one: bandwidth of responses of 16 KiB",
        statements: &[
            "SendWrite catches up with 16 requesters; SendSend is bound by the network with 40 only.",
        ],
        trials: || bandwidths(&REQUESTERS, |requesters, preset| responses(preset, 16_384, requesters)),
        ..FIGURE_5
    },
    Experiment {
        id: "B.6-64",
        title: "N-to-one: bandwidth of responses of 64 B with a dispatcher on each node",
        statements: &["The same pattern as with private connections."],
        trials: || dispatched(64),
        ..FIGURE_6
    },
    Experiment {
        id: "B.6-4096",
        title: "N-to-one: bandwidth of responses of 4 KiB with a dispatcher on each node",
        statements: &[
            "40 requesters are needed instead of 16 for the full bandwidth: the hand-over costs time. SendSend and \
             SendWrite decline as before, so the number of connections was not why.",
        ],
        trials: || dispatched(4096),
        ..FIGURE_6
    },
    Experiment {
        id: "B.7",
        place: "figure 7, section 6",
        title: "N-to-one: what a message costs the responder",
        x: Axis::linear("requesters", ""),
        y: Axis::linear("processor time of the responder", "ns for each message"),
        statements: &[
            "With 16 requesters around 1700 cycles for all patterns.",
            "With more than 20, SendSend and SendWrite stay at around 1700, WriteWrite and WriteSend fall to around \
             1100.",
        ],
        conditions: "As in figure 5, responses of 4 KB.",
        differs: &[DIFFERS, TIME_NOT_CYCLES],
        trials: || {
            let y = |sample: &Sample| sample.server_cpu_us_per_call * 1e3;
            sweep_beside([], &REQUESTERS, &PATTERNS, y, |requesters, preset| {
                responses(preset, 4096, requesters)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "B.table-1",
        place: "table 1, section 6",
        title: "SendSend: where the responder’s cycles go",
        x: Axis::linear("1: pthread_spin_lock; 2: mlx5_poll_cq_1", ""),
        y: Axis::linear("cycles", "%"),
        published: &[published("SendSend", &[(Some(1.0), 61.0), (Some(2.0), 17.0)], "table 1")],
        conditions: "Responses of 4 KB, 40 requesters, one responder.",
        not_yet: Some(
            "it is a profile of the functions of one RNIC’s driver; the software RNIC polls without a lock, and has \
             no shared receive queue in this path.",
        ),
        ..BLANK
    },
    Experiment {
        id: "B.8-64",
        title: "N-to-M: bandwidth of responses of 64 B by responders",
        statements: &["Up to 1 KB bandwidth grows with responders."],
        trials: || to_many(64, |responders| Topology::PrivateToMany { responders }),
        ..FIGURE_8
    },
    Experiment {
        id: "B.8-4096",
        title: "N-to-M: bandwidth of responses of 4 KiB by responders",
        published: &[published(
            "SendWrite",
            &[(None, 40.0)],
            "section 7: well over 40 GB/s, of 66 that are possible",
        )],
        statements: &[
            "SendWrite is ahead of WriteSend; WriteWrite stays far from the possible 66 GB/s, because its mailboxes \
             are often empty.",
        ],
        trials: || to_many(4096, |responders| Topology::PrivateToMany { responders }),
        ..FIGURE_8
    },
    Experiment {
        id: "B.table-2",
        place: "table 2, section 7",
        title: "N-to-M: empty mailboxes by responders",
        x: Axis::linear("responder threads", ""),
        y: Axis::linear("empty mailboxes", "%"),
        published: &[published(
            "90 requesters",
            &[(Some(6.0), 83.3), (Some(12.0), 91.6), (Some(18.0), 94.4)],
            "table 2; 15, 7.5 and 5 requesters for each responder",
        )],
        conditions: "As in figure 8.",
        differs: &[
            DIFFERS,
            ONE_PROCESSOR,
            MANY_DIFFERS,
            "The paper divides requesters by responders. Here the calls under way at a responder are counted whenever \
             it has answered one: that one, and those of the others.",
        ],
        trials: || {
            let y = |sample: &Sample| 100.0 * sample.empty_share;
            sweep_beside([], &RESPONDERS, &[("90 requesters", "server-reply")], y, |responders, preset| {
                CallTask {
                    topology: Topology::PrivateToMany { responders },
                    ..responses(preset, 64, MANY_REQUESTERS)
                }
            })
        },
        ..BLANK
    },
    Experiment {
        id: "B.9a",
        place: "figure 9a, section 7",
        title: "90-to-one: bandwidth of responses of 4 KiB",
        x: Axis::linear("requesters", ""),
        y: Axis::linear("bandwidth", "GB/s"),
        statements: &[
            "With requests by WRITE the full bandwidth is reached in spite of the many mailboxes, with requests by \
             SEND not.",
        ],
        conditions: "90 requester threads, one responder thread.",
        differs: &[DIFFERS],
        trials: || bandwidths(&[MANY_REQUESTERS], |requesters, preset| responses(preset, 4096, requesters)),
        ..BLANK
    },
    Experiment {
        id: "B.9b",
        place: "figure 9b, section 7",
        title: "90-to-one: bandwidth by empty mailboxes",
        x: Axis::linear("empty mailboxes", "%"),
        y: Axis::linear("bandwidth", "GB/s"),
        published: &[published(
            "requests by WRITE",
            &[(Some(80.0), 8.0), (Some(90.0), 4.0)],
            "section 7: around 8 and only around 4 GB/s",
        )],
        statements: &["Quite stable up to 70 %, then it drops."],
        conditions: "90 requester threads, of which the rest waits as long as another responder would take: 8 µs; \
                     responses of 4 KB.",
        differs: &[DIFFERS, "Empty mailboxes are those of idle connections; they do not change roles."],
        trials: || {
            let curves = [(WRITE_WRITE, "server-reply"), (WRITE_SEND, "write-send")];
            let (limit, empty_percent) = (Trial::limit_of_bandwidth(), [0, 20, 40, 60, 70, 80, 90]);
            sweep_beside(limit, &empty_percent, &curves, Sample::gb_per_second, |percent, preset| {
                let silent_connections = MANY_REQUESTERS * percent / 100;
                let task = responses(preset, 4096, MANY_REQUESTERS - silent_connections);
                CallTask { silent_connections, ..task }
            })
        },
        ..BLANK
    },
    Experiment {
        id: "B.10-4096",
        title: "N-to-M: bandwidth of responses of 4 KiB by responders with a dispatcher on each node",
        statements: &["Up to 4 KB private connections are better."],
        trials: || to_many(4096, |responders| Topology::Dispatcher { responders, connections: 1 }),
        ..FIGURE_10
    },
    Experiment {
        id: "B.10-16384",
        title: "N-to-M: bandwidth of responses of 16 KiB by responders with a dispatcher on each node",
        statements: &[
            "WriteSend and SendSend gain up to 5 GB/s by the dispatcher; SendWrite and WriteWrite are equally good in \
             both.",
        ],
        trials: || to_many(16_384, |responders| Topology::Dispatcher { responders, connections: 1 }),
        ..FIGURE_10
    },
    Experiment {
        id: "B.section-8",
        place: "section 8",
        title: "One call at a time with empty mailboxes: scanned one by one, or as dense bytes",
        x: Axis::linear("empty mailboxes", ""),
        y: Axis::linear("median latency", "µs"),
        statements: &[
            "With 64 clients only one cache line is polled instead of 64; but the requester writes two messages \
             instead of one, which costs latency and operations of the RNIC. Not measured there.",
        ],
        conditions: "The paper names the design of L5 and did not build it.",
        differs: &[DIFFERS],
        trials: || {
            let curves = [(WRITE_WRITE, "server-reply"), ("WriteWrite, dense mailbox", "l5")];
            sweep(&[0, 63, 255, 511, 895], &curves, Sample::p50_us, |silent_connections, preset| CallTask {
                silent_connections,
                ..responses(preset, 64, 1)
            })
        },
        ..BLANK
    },
];

/// Names of the patterns in the paper: the request's verb, then the response's.
const WRITE_WRITE: &str = "WriteWrite";
const SEND_WRITE: &str = "SendWrite";
const WRITE_SEND: &str = "WriteSend";
const SEND_SEND: &str = "SendSend";
/// Patterns with their presets.
const PATTERNS: [(&str, &str); 4] = [
    (WRITE_WRITE, "server-reply"),
    (SEND_WRITE, "send-write"),
    (WRITE_SEND, "write-send"),
    (SEND_SEND, "send-send"),
];

/// Lengths of responses in bytes; longer ones would need several slots here.
const RESPONSE_LENS_BYTES: [u32; 5] = [64, 256, 1024, 4096, 16_384];
/// Eight threads on each of one to five nodes.
const REQUESTERS: [u32; 5] = [8, 16, 24, 32, 40];

/// Differences of all experiments from the paper's.
const DIFFERS: &str = "Two processes, a core each. Requesters are connections, all run by one client thread, which \
                       sends on all of them and then waits for all responses. SENDs land in receives of their own \
                       connection, not in a shared receive queue. Responses come out of 64 MiB.";
/// Note for experiments that only know CPU time.
const TIME_NOT_CYCLES: &str = "Processor time of the responder, in nanoseconds; the paper counts instructions or \
                               cycles, which are not read here yet.";
/// Note for experiments with more threads than processors.
const ONE_PROCESSOR: &str = "All requesters and the dispatcher share one processor, all responders another: what is \
                             shown is what the work costs, not what it gains by more processors.";
const MANY_DIFFERS: &str =
    "One server process; each requester calls a responder at random, one call at a time.";
/// Number in the paper, on nine nodes.
const MANY_REQUESTERS: u32 = 90;
/// Numbers in the paper, on three nodes.
const RESPONDERS: [u16; 3] = [6, 12, 18];

/// Returns calls with requests of 64 bytes, one outstanding on each connection.
fn responses(preset: &'static str, len_bytes: u32, requesters: u32) -> CallTask {
    CallTask { callee: Callee::Block { len_bytes }, connections: requesters, ..CallTask::small(preset) }
}

/// Returns trials of bandwidths of all patterns: for each value the task that `task` returns for the preset.
fn bandwidths<X: Coordinate>(values: &[X], task: fn(X, &'static str) -> CallTask) -> Vec<Trial> {
    sweep_beside(Trial::limit_of_bandwidth(), values, &PATTERNS, Sample::gb_per_second, task)
}

fn dispatched(len_bytes: u32) -> Vec<Trial> {
    let limit = Trial::limit_of_bandwidth();
    sweep_beside(limit, &REQUESTERS, &PATTERNS, Sample::gb_per_second, |requesters, preset| CallTask {
        topology: Topology::Dispatcher { responders: 1, connections: 1 },
        ..responses(preset, len_bytes, requesters)
    })
}

fn to_many(len_bytes: u32, topology: fn(u16) -> Topology) -> Vec<Trial> {
    let limit = Trial::limit_of_bandwidth();
    sweep_beside(limit, &RESPONDERS, &PATTERNS, Sample::gb_per_second, |responders, preset| CallTask {
        topology: topology(responders),
        ..responses(preset, len_bytes, MANY_REQUESTERS)
    })
}

/// Returns trials of the processor time per byte in nanoseconds, from that of a call in microseconds.
fn costs_of_a_byte(cpu_us_per_call: fn(&Sample) -> f64) -> Vec<Trial> {
    grid([], &RESPONSE_LENS_BYTES, &PATTERNS, |series, len_bytes, preset| {
        let x = f64::from(len_bytes);
        Trial::at(series, x, responses(preset, len_bytes, 1), move |sample| cpu_us_per_call(sample) * 1e3 / x)
    })
}

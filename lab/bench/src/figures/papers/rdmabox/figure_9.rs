//! Wait strategies for completions by number of peers: a panel for throughput and one for their cost.

use super::{DIFFERS, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;
use crate::remio::{Combining, Polling, RemioTask, Sample, Workload};

/// Numbers of donors.
const PEERS: [u32; 4] = [1, 2, 4, 8];

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 9, section 5-B",
        title,
        x: Axis::logarithmic("peers", ""),
        y,
        published: &[],
        statements: &[
            "N busy polling threads are best with few peers; with more than four their processor time costs \
             throughput.",
            "One shared completion queue is worse than events from 8 peers on, and more shared ones help little.",
            "Adaptive Polling has a higher throughput than shared queues with many peers, for little more \
             processor time than events.",
        ],
        conditions: "VoltDB under SYS over remote paging, single I/O with preMR, one queue pair and completion \
                     queue for each peer, or M shared ones: SCQ(M). 32 virtual cores.",
        how: How::Here {
            differs: &[
                DIFFERS,
                "No database: two threads with bursts of 8, three quarters READs, the peers in turn. Two cores, so \
                 that two busy threads are already too many. Up to 8 peers, each a process.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const THROUGHPUT: Experiment =
    panel("C.9a", "Ways to wait by peers: throughput", Axis::linear("requests", "thousand/s"), || {
        trials(Sample::kiops)
    });

pub(super) const CPU: Experiment =
    panel("C.9b", "Ways to wait by peers: processor time", Axis::linear("processor time", "cores"), || {
        trials(|sample| sample.cpu_us_per_request * sample.per_second / 1e6)
    });

fn trials(y: fn(&Sample) -> f64) -> Vec<Trial> {
    // Number of completion queues: one for each peer, or a fixed number of shared ones.
    let ways = [
        ("Event", Polling::Event, u32::MAX),
        ("Busy", Polling::Busy, u32::MAX),
        ("EventBatch", Polling::EventBatch, u32::MAX),
        ("SCQ(1)", Polling::Busy, 1),
        ("SCQ(2)", Polling::Busy, 2),
        ("AdaptivePoll", Polling::Adaptive, u32::MAX),
    ];
    let usual = RemioTask {
        burst: 8,
        connections: 1,
        region_bytes: 4 << 20,
        ..RemioTask::of(Workload::MIXED, Combining::Single)
    };
    let mut trials = Vec::new();
    for peers in PEERS {
        for (series, polling, shared) in ways {
            let task = RemioTask { peers, pollers: shared.min(peers), polling, ..usual };
            trials.push(Trial::remio(series, peers.into(), task, y));
        }
    }
    trials
}

//! Many requesters through a dispatcher: a panel for each response size.

use super::{DIFFERS, ONE_PROCESSOR, PAPER, PATTERNS, REQUESTERS, responses};
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

pub(super) const PAGE_ID: &str = "B.6-4096";

const fn panel(
    id: &'static str,
    title: &'static str,
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 6, section 6",
        title,
        x: Axis::linear("requesters", ""),
        y: Axis::linear("bandwidth", "GB/s"),
        published: &[],
        statements,
        conditions: "As in figure 5, with one connection for each node.",
        how: How::Here {
            differs: &[
                DIFFERS,
                ONE_PROCESSOR,
                "One node, so one connection, whatever the number of requesters.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const SMALL: Experiment = panel(
    "B.6-64",
    "N-to-one: bandwidth of responses of 64 B with a dispatcher on each node",
    &["The same pattern as with private connections."],
    || trials(64),
);

pub(super) const PAGE: Experiment = panel(
    PAGE_ID,
    "N-to-one: bandwidth of responses of 4 KiB with a dispatcher on each node",
    &[
        "40 requesters are needed instead of 16 for the full bandwidth: the hand-over costs time. SendSend and SendWrite \
         decline as before, so the number of connections was not why.",
    ],
    || trials(4096),
);

fn trials(len_bytes: u32) -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for requesters in REQUESTERS {
        for (series, preset) in PATTERNS {
            let topology = Topology::Dispatcher { responders: 1, connections: 1 };
            let task = CallTask { topology, ..responses(preset, len_bytes, requesters) };
            trials.push(Trial::at(series, requesters.into(), task, Sample::gb_per_second));
        }
    }
    trials
}

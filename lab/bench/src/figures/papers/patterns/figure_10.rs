//! Many requesters and several responders, through dispatchers: a panel for each response size.

use super::{DIFFERS, MANY_DIFFERS, MANY_REQUESTERS, ONE_PROCESSOR, PAPER, PATTERNS, RESPONDERS, responses};
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const fn panel(
    id: &'static str,
    title: &'static str,
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 10, section 7",
        title,
        x: Axis::linear("responder threads", ""),
        y: Axis::linear("bandwidth of all", "GB/s"),
        published: &[],
        statements,
        conditions: "As in figure 8, with one connection from each node to each responder.",
        how: How::Here {
            differs: &[
                DIFFERS,
                ONE_PROCESSOR,
                MANY_DIFFERS,
                "One node of requesters, so one connection to each responder.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const PAGE: Experiment = panel(
    "B.10-4096",
    "N-to-M: bandwidth of responses of 4 KiB by responders with a dispatcher on each node",
    &["Up to 4 KB private connections are better."],
    || trials(4096),
);

pub(super) const LARGE: Experiment = panel(
    "B.10-16384",
    "N-to-M: bandwidth of responses of 16 KiB by responders with a dispatcher on each node",
    &[
        "WriteSend and SendSend gain up to 5 GB/s by the dispatcher; SendWrite and WriteWrite are equally good in both.",
    ],
    || trials(16_384),
);

fn trials(len_bytes: u32) -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for responders in RESPONDERS {
        for (series, preset) in PATTERNS {
            let topology = Topology::Dispatcher { responders, connections: 1 };
            let task = CallTask { topology, ..responses(preset, len_bytes, MANY_REQUESTERS) };
            trials.push(Trial::at(series, responders.into(), task, Sample::gb_per_second));
        }
    }
    trials
}

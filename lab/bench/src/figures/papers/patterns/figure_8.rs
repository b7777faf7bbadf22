//! Many requesters and several responders: a panel for each response size.

use super::{DIFFERS, MANY_DIFFERS, MANY_REQUESTERS, ONE_PROCESSOR, PAPER, PATTERNS, RESPONDERS, responses};
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const PAGE_ID: &str = "B.8-4096";

const fn panel(
    id: &'static str,
    title: &'static str,
    published: &'static [Published],
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 8, section 7",
        title,
        x: Axis::linear("responder threads", ""),
        y: Axis::linear("bandwidth of all", "GB/s"),
        published,
        statements,
        conditions: "90 requester threads on nine nodes, 2, 4 and 6 responder threads on each of three; every request \
                     goes to a random responder.",
        how: How::Here { differs: &[DIFFERS, ONE_PROCESSOR, MANY_DIFFERS], trials },
        file: file!(),
    }
}

pub(super) const SMALL: Experiment = panel(
    "B.8-64",
    "N-to-M: bandwidth of responses of 64 B by responders",
    &[],
    &["Up to 1 KB bandwidth grows with responders."],
    || trials(64),
);

pub(super) const PAGE: Experiment = panel(
    PAGE_ID,
    "N-to-M: bandwidth of responses of 4 KiB by responders",
    &[Published {
        series: "SendWrite",
        points: &[(None, 40.0)],
        source: "section 7: well over 40 GB/s, of 66 that are possible",
    }],
    &[
        "SendWrite is ahead of WriteSend; WriteWrite stays far from the possible 66 GB/s, because its mailboxes are often \
         empty.",
    ],
    || trials(4096),
);

fn trials(len_bytes: u32) -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for responders in RESPONDERS {
        for (series, preset) in PATTERNS {
            let topology = Topology::PrivateToMany { responders };
            let task = CallTask { topology, ..responses(preset, len_bytes, MANY_REQUESTERS) };
            trials.push(Trial::at(series, responders.into(), task, Sample::gb_per_second));
        }
    }
    trials
}

//! Bandwidth of many requesters and one responder: a panel for each response size.

use super::{DIFFERS, PAPER, PATTERNS, REQUESTERS, SEND_SEND, SEND_WRITE, WRITE_WRITE, responses};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const PAGE_ID: &str = "B.5-4096";

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
        place: "figure 5, section 6",
        title,
        x: Axis::linear("requesters", ""),
        y: Axis::linear("bandwidth", "GB/s"),
        published,
        statements,
        conditions: "Eight requester threads on each of one to five nodes, private connections, one responder thread.",
        how: How::Here { differs: &[DIFFERS], trials },
        file: file!(),
    }
}

pub(super) const SMALL: Experiment = panel(
    "B.5-64",
    "N-to-one: bandwidth of responses of 64 B",
    &[
        Published {
            series: SEND_SEND,
            points: &[(Some(16.0), 0.5)],
            source: "section 6: 64 and 256 B, without saying which of both",
        },
        Published {
            series: WRITE_WRITE,
            points: &[(Some(16.0), 1.2)],
            source: "section 6: 64 and 256 B, without saying which of both",
        },
    ],
    &["With more than 16 requesters nothing changes."],
    || trials(64),
);

pub(super) const PAGE: Experiment = panel(
    PAGE_ID,
    "N-to-one: bandwidth of responses of 4 KiB",
    &[
        Published {
            series: SEND_WRITE,
            points: &[(None, 9.5)],
            source: "section 6: at most, from 16 requesters on",
        },
        Published {
            series: SEND_SEND,
            points: &[(None, 8.0)],
            source: "section 6: at most, from 16 requesters on",
        },
    ],
    &["WriteWrite and WriteSend reach the bandwidth of the RNIC with 16 requesters."],
    || trials(4096),
);

pub(super) const LARGE: Experiment = panel(
    "B.5-16384",
    "N-to-one: bandwidth of responses of 16 KiB",
    &[],
    &["SendWrite catches up with 16 requesters; SendSend is bound by the network with 40 only."],
    || trials(16_384),
);

fn trials(len_bytes: u32) -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for requesters in REQUESTERS {
        for (series, preset) in PATTERNS {
            let task = responses(preset, len_bytes, requesters);
            trials.push(Trial::at(series, requesters.into(), task, Sample::gb_per_second));
        }
    }
    trials
}

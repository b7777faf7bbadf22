//! Cost of a message at the responder, by number of requesters.

use super::{DIFFERS, PAPER, PATTERNS, REQUESTERS, TIME_NOT_CYCLES, responses};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;

pub(super) const ID: &str = "B.7";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 7, section 6",
    title: "N-to-one: what a message costs the responder",
    x: Axis::linear("requesters", ""),
    y: Axis::linear("processor time of the responder", "ns for each message"),
    published: &[],
    statements: &[
        "With 16 requesters around 1700 cycles for all patterns.",
        "With more than 20, SendSend and SendWrite stay at around 1700, WriteWrite and WriteSend fall to around 1100.",
    ],
    conditions: "As in figure 5, responses of 4 KB.",
    how: How::Here { differs: &[DIFFERS, TIME_NOT_CYCLES], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for requesters in REQUESTERS {
        for (series, preset) in PATTERNS {
            let task = responses(preset, 4096, requesters);
            trials.push(Trial::at(series, requesters.into(), task, |s| s.server_cpu_us_per_call * 1e3));
        }
    }
    trials
}

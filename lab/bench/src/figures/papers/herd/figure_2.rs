//! Latency of verbs.

use super::PAPER;
use crate::baseline::Baseline;
use crate::experiments::herd::HerdFigure;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{BARE_PING_PONG, Sample, Trial};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "E.2",
    place: "figure 2, section 3.2",
    title: "Latency of verbs and of ECHO by size",
    x: Axis::logarithmic("payload", "B"),
    y: Axis::linear("mean latency", "µs"),
    published: &[],
    statements: &[
        "Up to 64 B an ECHO takes as long as a READ: a WRITE one way takes about half of a READ.",
        "Signalled WRITE and READ take alike; inlining makes small WRITEs significantly faster.",
        "No more than 256 B can be inlined.",
    ],
    conditions: "One client and one server; WRITE, WR-INLINE and READ until their completion, ECHO by inlined, \
                 unsignalled WRITEs.",
    how: How::Here { differs: &["ECHO / 2 is half a round trip, the paper plots the whole."], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::level(BARE_PING_PONG, Baseline::SharedMemory, Sample::mean_us)];
    trials.extend(Trial::herd(HerdFigure::Latency, &["WRITE", "WR-INLINE", "READ", "ECHO / 2"]));
    trials
}

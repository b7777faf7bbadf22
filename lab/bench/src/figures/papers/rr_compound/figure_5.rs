//! Busy polling and events, one request per 300 µs: a panel for latency and one for processor time.

use super::{PAPER, STREAMS_DIFFER, waits};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const INTERVAL_US: u64 = 300;

pub(super) const CPU_ID: &str = "D.5b";

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 5, section IV-B",
        title,
        x: Axis::logarithmic("clients", ""),
        y,
        published: &[],
        statements: &[
            "Events scale; the latency of busy polling rises sharply from 40 clients on, as many as cores.",
            "Busy polling uses far more processor time of the server.",
        ],
        conditions: "As figure 4, and each client sends 300 µs after an answer.",
        how: How::Here { differs: &[STREAMS_DIFFER], trials },
        file: file!(),
    }
}

pub(super) const LATENCY: Experiment = panel(
    "D.5a",
    "Busy polling and events, 300 µs between requests: latency",
    Axis::logarithmic("mean latency", "µs"),
    || Trial::limits_of_one(Sample::mean_us).into_iter().chain(waits(INTERVAL_US, Sample::mean_us)).collect(),
);

pub(super) const CPU: Experiment = panel(
    CPU_ID,
    "Busy polling and events, 300 µs between requests: the server’s processor time",
    Axis::logarithmic("processor time", "µs for each request"),
    || waits(INTERVAL_US, Sample::server_us_per_op),
);

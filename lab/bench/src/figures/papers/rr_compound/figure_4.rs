//! Busy polling and events, requests without a pause: a panel for latency and one for processor time.

use super::{PAPER, STREAMS_DIFFER, waits};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const INTERVAL_US: u64 = 0;

pub(super) const LATENCY_ID: &str = "D.4a";

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 4, section IV-B",
        title,
        x: Axis::logarithmic("clients", ""),
        y,
        published: &[],
        statements: &[
            "The latency of busy polling stays almost constant up to as many connections as cores, then rises \
             slowly; that of events rises from 8 clients on, and sharply from 40 on.",
            "With events the server is idle for up to more than 80 % of its time: one core handles all interrupts.",
        ],
        conditions: "Ping-pongs by ibverbs, 200,000 requests of each client, without a pause; 1 to 128 clients.",
        how: How::Here { differs: &[STREAMS_DIFFER], trials },
        file: file!(),
    }
}

pub(super) const LATENCY: Experiment = panel(
    LATENCY_ID,
    "Busy polling and events without a pause: latency",
    Axis::logarithmic("mean latency", "µs"),
    || Trial::limits_of_one(Sample::mean_us).into_iter().chain(waits(INTERVAL_US, Sample::mean_us)).collect(),
);

pub(super) const CPU: Experiment = panel(
    "D.4b",
    "Busy polling and events without a pause: the server’s processor time",
    Axis::logarithmic("processor time", "µs for each request"),
    || waits(INTERVAL_US, Sample::server_us_per_op),
);

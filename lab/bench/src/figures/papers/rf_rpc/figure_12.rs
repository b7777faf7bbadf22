//! One server thread per queue pair.

use super::PAPER;
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const QPS: [u16; 4] = [1, 3, 14, 42];
const EACH: &str = "a thread for each";
const ONE: &str = "one thread for all";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.12",
    place: "figure 12, section 5.5",
    title: "A server thread for each queue pair",
    x: Axis::linear("queue pairs", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &["The threads of figure 11 are together about 1.51 times as fast."],
    conditions: "42 clients, 42 server threads, 32-byte values, 95 % GET, uniform and Zipf .99; what each thread serves.",
    how: How::Here {
        differs: &[
            "Calls of an echo service, 64 bytes there and 8 back, one under way on each connection; all connections are \
             run by one client thread.",
            "All server threads share one processor, so that more of them cost switches between them, and bring nothing. \
             What all serve together.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for qps in QPS {
        let one = CallTask { connections: qps.into(), ..CallTask::small("rf-rpc") };
        let each = CallTask { topology: Topology::Spread { responders: qps }, ..one };
        trials.push(Trial::at(ONE, qps.into(), one, Sample::mops));
        trials.push(Trial::at(EACH, qps.into(), each, Sample::mops));
    }
    trials
}

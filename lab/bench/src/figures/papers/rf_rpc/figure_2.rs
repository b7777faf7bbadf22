//! Cost of several operations per request.

use super::super::lone_gets;
use super::PAPER;
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{READ_ALONE, Sample, Trial};
use crate::rivals::Rival;
use crate::rnic::{Operation, RnicTask, Tuning};
use farcall_link::Transport;

const PILAF: &str = "Pilaf, any number of READs";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.2",
    place: "figure 2, sections 2.3 and 5.2",
    title: "Requests by the operations that each of them needs (server-bypass)",
    x: Axis::linear("operations for a request", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[Published {
        series: "Pilaf",
        points: &[(Some(3.2), 3.5)],
        source: "section 5.2: Pilaf’s peak on this cluster, calculated (95 % GET, uniform)",
    }],
    statements: &[
        "With write-intensive workloads, where conflicts are many, the throughput falls below 1 MOPS.",
    ],
    conditions: "21 client threads, one server.",
    how: How::Here {
        differs: &[
            "One client, one GET after the other; the number of READs is what the store farcall_kv::pilaf needs, three \
             quarters full and without writers, not a choice: section 5.2 shows it.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let read = RnicTask::latency(Operation::Read, Transport::Rc, 64, Tuning::LATENCY);
    let pilaf = lone_gets(FrontEnd::Rival(Rival::Pilaf));
    vec![Trial::at(READ_ALONE, 1.0, read, Sample::mops), Trial::level(PILAF, pilaf, Sample::mops)]
}

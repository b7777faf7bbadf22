//! Fetching compared with replying, by computation time of the server; the paper derives N from it.

use super::{PAPER, SERVER_REPLY};
use crate::experiments::calls::{CallTask, Callee};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const FETCHING: &str = "repeated remote fetching";
const PROCESS_US: [u32; 9] = [0, 1, 2, 3, 4, 5, 7, 9, 12];
/// Number of connections that is sufficient to keep the server's thread busy.
const CONNECTIONS: u32 = 4;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.5",
    place: "figure 5, section 3.2",
    title: "Repeated fetching and server-reply by process time",
    x: Axis::linear("process time", "µs"),
    y: Axis::linear("calls", "million/s"),
    published: &[],
    statements: &[
        "From P = 7 µs on, fetching is at most 10 % faster than server-reply, while the client may use more than twice \
         the processor time: so N is 5.",
    ],
    conditions: "F and S are 1 byte, so that one READ brings a result.",
    how: How::Here {
        differs: &[
            "One server thread, so that no more than 1/P calls a second are possible; the presets fetch and server-reply, \
             results of no bytes, four connections run by one client thread.",
            "In shared memory a reply costs the server what a fetch costs the client: nothing here is bound by an RNIC’s \
             out-bound operations.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for us in PROCESS_US {
        for (series, preset) in [(FETCHING, "fetch"), (SERVER_REPLY, "server-reply")] {
            let callee = Callee::Work { us };
            let task = CallTask { callee, connections: CONNECTIONS, ..CallTask::small(preset) };
            trials.push(Trial::at(series, us.into(), task, Sample::mops));
        }
    }
    trials
}

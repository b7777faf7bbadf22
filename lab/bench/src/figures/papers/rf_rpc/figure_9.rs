//! Effect of the switch to server-reply, by computation time of the server.

use super::{JAKIRO, PAPER, SERVER_REPLY, WITHOUT_SWITCH};
use crate::experiments::calls::{CallTask, Callee};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const PROCESS_US: [u32; 7] = [1, 2, 3, 5, 7, 9, 12];
/// Number of connections that is sufficient to keep the server's thread busy.
const CONNECTIONS: u32 = 4;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.9",
    place: "figure 9, section 5.3.2",
    title: "The switch: throughput by process time",
    x: Axis::linear("process time", "µs"),
    y: Axis::linear("calls", "million/s"),
    published: &[],
    statements: &[
        "Below 7 µs Jakiro is 30 % to 320 % faster than ServerReply.",
        "From 7 µs on both are comparable: RF-RPC switches to server-reply after five failed fetches in each of two calls.",
    ],
    conditions: "16 server threads, 35 client threads; the process time is a loop on the time stamp counter.",
    how: How::Here {
        differs: &[
            "One server thread, so that no more than 1/P calls a second are possible; four connections run by one client \
             thread; the presets rf-rpc (Jakiro), fetch (without the switch) and server-reply.",
            "Calls of an echo service, not of a store.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for us in PROCESS_US {
        for (series, preset) in
            [(JAKIRO, "rf-rpc"), (WITHOUT_SWITCH, "fetch"), (SERVER_REPLY, "server-reply")]
        {
            let callee = Callee::Work { us };
            let task = CallTask { callee, connections: CONNECTIONS, ..CallTask::small(preset) };
            trials.push(Trial::at(series, us.into(), task, Sample::mops));
        }
    }
    trials
}

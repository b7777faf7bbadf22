//! Gain by batches, compared with that by a faster RNIC.

use super::{JAKIRO, PAPER, SERVER_REPLY, batched_load, usual_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

const BATCH: u16 = 16;
/// Number of connections that is sufficient to keep the server's thread busy.
const CONNECTIONS: u32 = 4;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.table-3",
    place: "table 3, section 5.7",
    title: "Without batches and with batches of 16, on ConnectX-3 and ConnectX-4",
    x: Axis::linear("0: without batches; 1: with batches of 16", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[
        Published {
            series: SERVER_REPLY,
            points: &[(Some(0.0), 1.66), (Some(1.0), 10.1)],
            source: "table 3: on ConnectX-3",
        },
        Published {
            series: JAKIRO,
            points: &[(Some(0.0), 3.05), (Some(1.0), 12.3)],
            source: "table 3: on ConnectX-3",
        },
        Published {
            series: "ServerReply, ConnectX-4",
            points: &[(Some(0.0), 2.26), (Some(1.0), 16.7)],
            source: "table 3",
        },
        Published {
            series: "Jakiro, ConnectX-4",
            points: &[(Some(0.0), 4.48), (Some(1.0), 22.6)],
            source: "table 3",
        },
    ],
    statements: &[
        "Mean latency of Jakiro 3.60 µs on ConnectX-4 and 5.06 µs on ConnectX-3; of ServerReply 6.77 µs on ConnectX-4.",
    ],
    conditions: "Five machines with one 4-core Xeon E5-2407 v2 (2.4 GHz); four server processes, 16 clients on four \
                 machines; 32-byte values, 95 % GET, uniform.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "One RNIC, so only what batches are worth on it is measured. Four connections, on each one operation under \
             way, or as many as fill a batch.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for (series, front_end) in [(JAKIRO, FrontEnd::RfRpc), (SERVER_REPLY, FrontEnd::ServerReply)] {
        let alone = usual_load(front_end, Distribution::Uniform, CONNECTIONS);
        let batched = batched_load(front_end, Distribution::Uniform, CONNECTIONS, BATCH);
        trials.push(Trial::at(series, 0.0, alone, Sample::mops));
        trials.push(Trial::at(series, 1.0, batched, Sample::mops));
    }
    trials
}

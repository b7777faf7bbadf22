//! Throughput of the stores by number of server threads.

use super::{JAKIRO, MEMCACHED, PAPER, SERVER_REPLY, usual_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

/// Number of connections; half of them already keep a server thread busy.
const CONNECTIONS: u32 = 16;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.7",
    place: "figure 7, section 5.3.1",
    title: "Throughput by server threads",
    x: Axis::linear("server threads", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[
        Published {
            series: JAKIRO,
            points: &[(None, 5.5)],
            source: "section 5.3.1: peak, from 3 threads on",
        },
        Published { series: SERVER_REPLY, points: &[(None, 2.1)], source: "section 5.3.1: peak" },
        Published { series: MEMCACHED, points: &[(None, 1.3)], source: "section 5.3.1: peak" },
        Published {
            series: "HERD",
            points: &[(None, 8.8)],
            source: "section 5.3: in the same environment; over UD, which is not reliable",
        },
    ],
    statements: &[
        "With more than 6 server threads ServerReply gets slower: out-bound operations do not scale.",
    ],
    conditions: "35 client threads on seven machines, 16-byte keys, 32-byte values, 95 % GET, uniform.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "16 connections, one request under way on each.",
            "One server thread only: more of them need cores of their own, beside those of the clients.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for (series, front_end) in [
        (JAKIRO, FrontEnd::RfRpc),
        (SERVER_REPLY, FrontEnd::ServerReply),
        (MEMCACHED, FrontEnd::RdmaMemcached),
    ] {
        let task = usual_load(front_end, Distribution::Uniform, CONNECTIONS);
        trials.push(Trial::at(series, 1.0, task, Sample::mops));
    }
    trials
}

//! Distribution of latencies.

use super::{JAKIRO, MEMCACHED, PAPER, SERVER_REPLY, usual_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

const JAKIRO_MEAN: &str = "Jakiro, mean";
const SERVER_REPLY_MEAN: &str = "ServerReply, mean";
const MEMCACHED_MEAN: &str = "RDMA-Memcached, mean";
/// Number of connections at the peak, the same as in figure 7.
const CONNECTIONS: u32 = 16;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.8",
    place: "figure 8, section 5.3.2",
    title: "Latencies at peak throughput",
    x: Axis::linear("share of requests", "%"),
    y: Axis::logarithmic("latency, at most", "µs"),
    published: &[
        Published {
            series: JAKIRO,
            points: &[(Some(99.0), 7.0)],
            source: "section 5.3.2: about 99 % are below 7 µs",
        },
        Published { series: JAKIRO_MEAN, points: &[(None, 5.78)], source: "section 5.3.2" },
        Published { series: SERVER_REPLY_MEAN, points: &[(None, 12.06)], source: "section 5.3.2" },
        Published { series: MEMCACHED_MEAN, points: &[(None, 14.76)], source: "section 5.3.2" },
    ],
    statements: &[
        "Up to the 15th percentile ServerReply is faster; its 50th and 99th are slower than Jakiro’s.",
        "0.2 % of Jakiro’s calls take more than two round trips: 15 to 17 µs.",
    ],
    conditions: "Each system at its peak: 35 client threads, 16-byte keys, 32-byte values, 95 % GET, uniform.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "16 connections in one thread: a latency holds the time in which that thread serves the other connections.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mean_us));
    for (series, mean, front_end) in [
        (JAKIRO, JAKIRO_MEAN, FrontEnd::RfRpc),
        (SERVER_REPLY, SERVER_REPLY_MEAN, FrontEnd::ServerReply),
        (MEMCACHED, MEMCACHED_MEAN, FrontEnd::RdmaMemcached),
    ] {
        let task = usual_load(front_end, Distribution::Uniform, CONNECTIONS);
        trials.push(Trial::distribution(series, task));
        trials.push(Trial::level(mean, task, Sample::mean_us));
    }
    trials
}

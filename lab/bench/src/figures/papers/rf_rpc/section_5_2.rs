//! Number of operations per call.

use super::super::lone_gets;
use super::{JAKIRO, MEMCACHED, PAPER, SERVER_REPLY, usual_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::Trial;
use crate::rivals::Rival;
use crate::workload::Distribution;

const PILAF: &str = "Pilaf, GET";
const CONNECTIONS: [u32; 3] = [1, 8, 35];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.section-5.2",
    place: "section 5.2",
    title: "Operations for each request",
    x: Axis::linear("connections", ""),
    y: Axis::linear("WRITEs, READs and SENDs of both ends", "for each request"),
    published: &[
        Published {
            series: JAKIRO,
            points: &[(Some(35.0), 2.005)],
            source: "section 5.2: round trips, 35 clients",
        },
        Published {
            series: PILAF,
            points: &[(None, 3.2)],
            source: "section 5.2: READs of a GET, without conflicts",
        },
    ],
    statements: &[],
    conditions: "16-byte keys, 32-byte values, 95 % GET, uniform; F = 256 bytes.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "Wake-ups and empty READs count; with one connection a READ often comes before the result is there.",
            "Pilaf is the store farcall_kv::pilaf: three quarters full, one client that only GETs, so without conflicts.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let pilaf = lone_gets(FrontEnd::Rival(Rival::Pilaf));
    let mut trials = vec![Trial::level(PILAF, pilaf, |sample| sample.verbs_per_call)];
    for connections in CONNECTIONS {
        for (series, front_end) in [
            (JAKIRO, FrontEnd::RfRpc),
            (SERVER_REPLY, FrontEnd::ServerReply),
            (MEMCACHED, FrontEnd::RdmaMemcached),
        ] {
            let task = usual_load(front_end, Distribution::Uniform, connections);
            trials.push(Trial::at(series, connections.into(), task, |sample| sample.verbs_per_call));
        }
    }
    trials
}

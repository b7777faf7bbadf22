//! RoCE compared with InfiniBand.

use super::{PAPER, SERVER_REPLY, usual_load};
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

const RF_RPC: &str = "RF-RPC";
/// The paper does not state the number of outstanding operations; its figures are too high for a single one.
const WINDOW: u32 = 16;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.table-4",
    place: "table 4, section 5.8",
    title: "RoCE and InfiniBand, one client thread and one server thread",
    x: Axis::linear("1: RoCE; 2: InfiniBand", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[
        Published {
            series: SERVER_REPLY,
            points: &[(Some(1.0), 1.21), (Some(2.0), 1.30)],
            source: "table 4",
        },
        Published { series: RF_RPC, points: &[(Some(1.0), 1.72), (Some(2.0), 1.85)], source: "table 4" },
    ],
    statements: &[
        "The gap is smaller over RoCE, whose link layer has nothing that favours out-bound operations.",
    ],
    conditions: "ConnectX-3 VPI as 10 Gb/s Ethernet and as InfiniBand, three machines.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "One RNIC, neither of both: a level each, to compare the two systems and not the networks. 16 operations \
             under way on one connection.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for (series, front_end) in [(RF_RPC, FrontEnd::RfRpc), (SERVER_REPLY, FrontEnd::ServerReply)] {
        let task = KvTask { window: WINDOW, ..usual_load(front_end, Distribution::Uniform, 1) };
        trials.push(Trial::level(series, task, Sample::mops));
    }
    trials
}

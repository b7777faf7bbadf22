//! RoCE beside InfiniBand.

use super::{PAPER, SERVER_REPLY};
use crate::figures::experiment::{Axis, Experiment, How, Published};

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
        Published { series: "RF-RPC", points: &[(Some(1.0), 1.72), (Some(2.0), 1.85)], source: "table 4" },
    ],
    statements: &[
        "The gap is smaller over RoCE, whose link layer has nothing that favours out-bound operations.",
    ],
    conditions: "ConnectX-3 VPI as 10 Gb/s Ethernet and as InfiniBand, three machines.",
    how: How::NotYet("it compares two networks between RNICs of two hosts."),
    file: file!(),
};

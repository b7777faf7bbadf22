//! A faster RNIC.

use super::{JAKIRO, PAPER, SERVER_REPLY};
use crate::figures::experiment::{Axis, Experiment, How, Published};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.table-3",
    place: "table 3, section 5.7",
    title: "ConnectX-3 and ConnectX-4, without batches and with batches of 16",
    x: Axis::linear("1, 2: ConnectX-3 without and with batches; 3, 4: ConnectX-4", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[
        Published {
            series: SERVER_REPLY,
            points: &[(Some(1.0), 1.66), (Some(2.0), 10.1), (Some(3.0), 2.26), (Some(4.0), 16.7)],
            source: "table 3",
        },
        Published {
            series: JAKIRO,
            points: &[(Some(1.0), 3.05), (Some(2.0), 12.3), (Some(3.0), 4.48), (Some(4.0), 22.6)],
            source: "table 3",
        },
    ],
    statements: &[
        "Mean latency of Jakiro 3.60 µs on ConnectX-4 and 5.06 µs on ConnectX-3; of ServerReply 6.77 µs on ConnectX-4.",
    ],
    conditions: "Five machines with one 4-core Xeon E5-2407 v2 (2.4 GHz); four server processes, 16 clients on four \
                 machines; 32-byte values, 95 % GET, uniform.",
    how: How::NotYet("it compares two RNICs, on several hosts."),
    file: file!(),
};

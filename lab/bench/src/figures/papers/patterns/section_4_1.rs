//! One requester thread over several connections.

use super::{DIFFERS, ONE_PROCESSOR, PAPER, responses};
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

/// Outstanding calls on all connections together.
const CALLS: u32 = 16;
const CONNECTIONS: [u16; 5] = [1, 2, 4, 8, 16];
const OWN: &str = "WriteWrite, connections of the requester's thread";
const DISPATCHER: &str = "WriteWrite, connections of a dispatcher";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.section-4.1",
    place: "section 4.1",
    title: "One-to-one: 16 calls under way, by the connections that they go over",
    x: Axis::logarithmic("connections to the responder", ""),
    y: Axis::linear("calls", "million/s"),
    published: &[],
    statements: &[
        "With more connections the RNIC switches between the states of queue pairs; a dispatcher has one for each receiver.",
    ],
    conditions: "The paper measures one private connection for each pair of threads, or one of a dispatcher.",
    how: How::Here {
        differs: &[
            DIFFERS,
            ONE_PROCESSOR,
            "Several queue pairs to one responder are several connections of one client. On an RNIC they are served by \
             several of its engines; here each is one more mailbox to look at.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for connections in CONNECTIONS {
        let x = f64::from(connections);
        let own = responses("server-reply", 64, connections.into());
        let own = CallTask { window: CALLS / u32::from(connections), ..own };
        trials.push(Trial::at(OWN, x, own, Sample::mops));
        let topology = Topology::Dispatcher { responders: 1, connections };
        let dispatched = CallTask { topology, ..responses("server-reply", 64, CALLS) };
        trials.push(Trial::at(DISPATCHER, x, dispatched, Sample::mops));
    }
    trials
}

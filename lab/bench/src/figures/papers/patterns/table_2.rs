//! Share of empty mailboxes.

use super::{DIFFERS, MANY_DIFFERS, MANY_REQUESTERS, ONE_PROCESSOR, PAPER, RESPONDERS, responses};
use crate::experiments::calls::{CallTask, Topology};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::Trial;

const REQUESTERS: &str = "90 requesters";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.table-2",
    place: "table 2, section 7",
    title: "N-to-M: empty mailboxes by responders",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("empty mailboxes", "%"),
    published: &[Published {
        series: REQUESTERS,
        points: &[(Some(6.0), 83.3), (Some(12.0), 91.6), (Some(18.0), 94.4)],
        source: "table 2; 15, 7.5 and 5 requesters for each responder",
    }],
    statements: &[],
    conditions: "As in figure 8.",
    how: How::Here {
        differs: &[
            DIFFERS,
            ONE_PROCESSOR,
            MANY_DIFFERS,
            "The paper divides requesters by responders. Here the calls under way at a responder are counted whenever it \
             has answered one: that one, and those of the others.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let trials = RESPONDERS.map(|responders| {
        let topology = Topology::PrivateToMany { responders };
        let task = CallTask { topology, ..responses("server-reply", 64, MANY_REQUESTERS) };
        Trial::at(REQUESTERS, responders.into(), task, |sample| 100.0 * sample.empty_share)
    });
    trials.into()
}

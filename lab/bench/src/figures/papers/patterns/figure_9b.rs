//! Cost of empty mailboxes.

use super::{DIFFERS, PAPER, WRITE_SEND, WRITE_WRITE, responses};
use crate::experiments::calls::CallTask;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const ID: &str = "B.9b";

const MAILBOXES: u32 = 90;
/// Percentages of empty mailboxes.
const EMPTY_PERCENT: [u32; 7] = [0, 20, 40, 60, 70, 80, 90];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 9b, section 7",
    title: "90-to-one: bandwidth by empty mailboxes",
    x: Axis::linear("empty mailboxes", "%"),
    y: Axis::linear("bandwidth", "GB/s"),
    published: &[Published {
        series: "requests by WRITE",
        points: &[(Some(80.0), 8.0), (Some(90.0), 4.0)],
        source: "section 7: around 8 and only around 4 GB/s",
    }],
    statements: &["Quite stable up to 70 %, then it drops."],
    conditions: "90 requester threads, of which the rest waits as long as another responder would take: 8 µs; responses \
                 of 4 KB.",
    how: How::Here {
        differs: &[
            DIFFERS,
            "Empty mailboxes are those of connections on which nobody calls; they do not change roles.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for percent in EMPTY_PERCENT {
        let silent_connections = MAILBOXES * percent / 100;
        for (series, preset) in [(WRITE_WRITE, "server-reply"), (WRITE_SEND, "write-send")] {
            let task = responses(preset, 4096, MAILBOXES - silent_connections);
            let task = CallTask { silent_connections, ..task };
            trials.push(Trial::at(series, percent.into(), task, Sample::gb_per_second));
        }
    }
    trials
}

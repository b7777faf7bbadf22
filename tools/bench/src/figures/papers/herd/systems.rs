//! HERD beside its rivals.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Subject, Trial};

const PILAF: &str = "Pilaf";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "E.systems",
    place: "section 2.3",
    title: "HERD, Pilaf and FaRM-KV: round trips of a GET",
    x: Axis::linear("system", ""),
    y: Axis::linear("round trips", "for each GET"),
    published: &[Published {
        series: PILAF,
        points: &[(None, 2.6)],
        source: "section 2.3: READs of a GET on average",
    }],
    statements: &["FaRM-KV needs one READ for an inlined value, one more for others."],
    conditions: "Pilaf’s cuckoo table, FaRM-KV’s hopscotch neighbourhood.",
    how: How::Here {
        differs: &[
            "Pilaf is the store farcall_kv::pilaf: three quarters full, one client that only GETs.",
            "HERD and FaRM-KV are not measured here, but by farcall kv bench: the store under the preset herd, and the \
             stores farm and farm-var, with their READs of a GET.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    vec![Trial::level(PILAF, Subject::Pilaf, |sample| sample.verbs_per_call)]
}

//! Machine learning over remote paging.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "C.11",
    place: "figure 11, section 6-A",
    title: "Machine learning over remote paging: completion time",
    x: Axis::linear("resident", "%"),
    y: Axis::linear("completion time", "s"),
    published: &[],
    statements: &[
        "Accelio takes up to 2.83 times as long for logistic regression, 1.5 for gradient boosting, 1.8 for \
         k-means, 4.62 for TextRank.",
    ],
    conditions: "Logistic regression, gradient boosting, k-means and TextRank on 4 to 87 million samples.",
    how: How::NotYet("there is no remote paging here yet: only the engine below it."),
    file: file!(),
};

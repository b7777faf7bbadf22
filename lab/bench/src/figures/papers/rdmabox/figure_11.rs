//! Machine learning over remote paging: a panel for each algorithm.

use super::{PAGED_DIFFERS, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::paged::{Algorithm, LearningTask, Resident};

const fn panel(
    id: &'static str,
    title: &'static str,
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 11, section 6-A",
        title,
        x: Axis::linear("resident", "%"),
        y: Axis::logarithmic("completion time", "s"),
        published: &[],
        statements,
        conditions: "Data of 4 to 87 million samples, 22 to 50 GB, 50 and 25 % of the most memory resident.",
        how: How::Here {
            differs: &[
                PAGED_DIFFERS,
                "The same algorithm in Python with numpy, one thread, a few rounds on 96 MiB of made-up data; the \
                 training alone is timed. What is learnt is the same to the last bit as with all memory resident, or \
                 the experiment fails.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const LOGISTIC_REGRESSION: Experiment = panel(
    "C.11a",
    "Logistic regression over remote paging: completion time",
    &["Accelio takes up to 2.83 times as long, plain verbs 3.69 times."],
    || trials(Algorithm::LogisticRegression),
);

pub(super) const GRADIENT_BOOSTING: Experiment = panel(
    "C.11b",
    "Gradient boosting over remote paging: completion time",
    &[
        "Accelio takes up to 1.5 times as long, plain verbs 1.53 times: it computes more than it waits for memory.",
    ],
    || trials(Algorithm::GradientBoosting),
);

pub(super) const K_MEANS: Experiment = panel(
    "C.11c",
    "K-means over remote paging: completion time",
    &[
        "Accelio takes up to 1.8 times as long, plain verbs 2.62 times: it computes more than it waits for memory.",
    ],
    || trials(Algorithm::KMeans),
);

pub(super) const TEXT_RANK: Experiment = panel(
    "C.11d",
    "TextRank over remote paging: completion time",
    &["Accelio takes up to 4.62 times as long, plain verbs 6.44 times: what needs most memory profits most."],
    || trials(Algorithm::TextRank),
);

fn trials(algorithm: Algorithm) -> Vec<Trial> {
    let of = |resident: Resident| {
        let task = LearningTask { algorithm, resident };
        Trial::at(resident.backing.name(), resident.percent.into(), task, Sample::seconds)
    };
    Resident::COMPARED.map(of).into()
}

//! Distributed training.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::training::{Carrier, Model, Training};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "D.19",
    place: "figure 19, section V-F",
    title: "TensorFlow: images a second, by model",
    x: Axis::linear("model, 1: Inception, 2: AlexNet, 3: ResNet", ""),
    y: Axis::linear("images", "1/s"),
    published: &[],
    statements: &[
        "Over gRPC, with 4, 8 and 12 nodes: Inception4 9.8, 14.7 and 14.8 % more, AlexNet 17.6, 18.9 and 20.3 %, \
         ResNet50 14.5, 16.8 and 29.6 %.",
        "Communication takes 8 to 60 % of the time, of YCSB at least 77 %.",
    ],
    conditions: "TensorFlow 2.8 in parameter-server mode, its CNN benchmark with synthetic images, up to 12 nodes \
                 with 2 Xeon E5-2680 v4, ConnectX-5 and Tesla V100.",
    how: How::Here {
        differs: &[
            "TensorFlow as it is installed here, unmodified: its gRPC over TCP, and the same processes under farcall run. \
             The losses of the first steps must be the same to the last bit.",
            "One parameter server, two workers and the chief on the two cores of one host; small models like the paper’s \
             three, 8 images of 32 by 32 pixels a step: 8.5 MB of variables of AlexNet’s, 0.4 of Inception’s, 1.2 of ResNet’s.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, model) in Model::ALL.into_iter().enumerate() {
        for (series, carrier) in [("gRPC", Carrier::Tcp), ("farcall run", Carrier::FarcallRun)] {
            let training = Training { model, carrier };
            trials
                .push(Trial::at(series, at as f64 + 1.0, training, |sample: &Sample| sample.line.per_second));
        }
    }
    trials
}

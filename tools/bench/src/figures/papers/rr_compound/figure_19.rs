//! Distributed training.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "D.19",
    place: "figure 19, section V-F",
    title: "TensorFlow over RR-Compound: images a second",
    x: Axis::linear("nodes", ""),
    y: Axis::linear("images", "1/s"),
    published: &[],
    statements: &[
        "Over gRPC, with 4, 8 and 12 nodes: Inception4 9.8, 14.7 and 14.8 % more, AlexNet 17.6, 18.9 and 20.3 %, ResNet50 \
         14.5, 16.8 and 29.6 %.",
        "Communication takes 8 to 60 % of the time, of YCSB at least 77 %.",
    ],
    conditions: "TensorFlow 2.8 in parameter-server mode, its CNN benchmark with synthetic images, up to 12 nodes with 2 Xeon \
                 E5-2680 v4, ConnectX-5 and Tesla V100.",
    how: How::NotYet(
        "TensorFlow is a program of others: this command starts none, and its models need GPUs and up to 12 machines.",
    ),
    file: file!(),
};

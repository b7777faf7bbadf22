//! Wait strategies for completions under small, medium and large bursts: panels for throughput, events and context
//! switches.

use super::{DIFFERS, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;
use crate::remio::{Combining, Polling, RemioTask, Sample, Workload};

pub(super) const THROUGHPUT_ID: &str = "C.2a";
pub(super) const ADAPTIVE: &str = "Adaptive Polling";
/// Strategies that it is compared with.
pub(super) const OTHERS: [&str; 2] = ["Event-Batch", "Hybrid"];
/// Numbers of requests per burst.
pub(super) const BURSTS: [u32; 3] = [1, 8, 64];

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 2, section 3-B",
        title,
        x: Axis::logarithmic("requests in a burst", ""),
        y,
        published: &[],
        statements: &[
            "Adaptive Polling has the highest throughput under every load, and fewer interrupts and context \
             switches than Event-Batch, which has most, and Hybrid under small and medium bursts.",
        ],
        conditions: "Small: one request at a time. Large: the smallest burst at which busy polling is fastest. \
                     Medium: half way between. MAX_RETRY is 120.",
        how: How::Here {
            differs: &[
                DIFFERS,
                "One thread submits, another looks for completions on another core. Bursts of 1, 8 and 64. Hybrid \
                 looks 1,000 times after an event before it sleeps, the paper’s until nothing comes.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const THROUGHPUT: Experiment = panel(
    THROUGHPUT_ID,
    "Ways to wait by bursts: throughput",
    Axis::linear("requests", "thousand/s"),
    || trials(Sample::kiops),
);

pub(super) const EVENTS: Experiment = panel(
    "C.2c",
    "Ways to wait by bursts: events asked for, where the paper counts interrupts",
    Axis::linear("events", "for each request"),
    || trials(Sample::sleeps_per_request),
);

pub(super) const SWITCHES: Experiment = panel(
    "C.2d",
    "Ways to wait by bursts: context switches of who waits",
    Axis::linear("context switches", "for each request"),
    || trials(Sample::switches_per_request),
);

fn trials(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let ways = [
        (ADAPTIVE, Polling::Adaptive),
        (OTHERS[0], Polling::EventBatch),
        (OTHERS[1], Polling::NaiveHybrid),
        ("Event", Polling::Event),
        ("Busy", Polling::Busy),
    ];
    let usual = RemioTask { threads: 1, ..RemioTask::of(Workload::RANDOM_WRITES, Combining::Single) };
    let mut trials = Vec::new();
    for burst in BURSTS {
        for (series, polling) in ways {
            trials.push(Trial::remio(series, burst.into(), RemioTask { burst, polling, ..usual }, y));
        }
    }
    trials
}

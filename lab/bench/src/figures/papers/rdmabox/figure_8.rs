//! The load of figure 1 with several queue pairs, with and without admission control.

use super::{BARE, DIFFERS, PAPER, bare};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;
use crate::remio::{Combining, RemioTask, Sample, Workload};

pub(super) const IOPS_ID: &str = "C.8a";
pub(super) const WITHOUT: &str = "without admission control";
pub(super) const WITH: &str = "with admission control";
/// Numbers of submitting threads.
pub(super) const THREADS: [u32; 6] = [1, 2, 4, 7, 10, 16];
/// A quarter of the bytes that 16 threads would have in flight. The paper's 7 MB would never hold back a request here.
const WINDOW_BYTES: u64 = 128 << 10;

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 8, section 5-A",
        title,
        x: Axis::linear("threads", ""),
        y,
        published: &[],
        statements: &[
            "With four queue pairs IOPS peak at 7 threads. A window of about 7 MB, what is in flight at the peak, \
             keeps the bytes in flight stable; the peak is 29.9 % higher.",
        ],
        conditions: "As in figure 1 with four queue pairs, in the paging system.",
        how: How::Here {
            differs: &[
                DIFFERS,
                "Three quarters READs, one quarter WRITEs, of pages of which no two are adjacent, merged and \
                 chained in both; a window of 128 KiB.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const IOPS: Experiment =
    panel(IOPS_ID, "Admission control by threads: IOPS", Axis::linear("requests", "thousand/s"), || {
        trials(Sample::kiops)
    });

pub(super) const IN_FLIGHT: Experiment = panel(
    "C.8b",
    "Admission control by threads: what is in flight",
    Axis::linear("in flight", "KiB"),
    || trials(Sample::in_flight_kib),
);

pub(super) const COMPLETION: Experiment = panel(
    "C.8c",
    "Admission control by threads: completion time",
    Axis::linear("median completion time", "µs"),
    || trials(Sample::p50_us),
);

fn trials(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let usual = RemioTask { burst: 8, ..RemioTask::of(Workload::MIXED, Combining::MergeAndChain) };
    let mut trials = vec![Trial::remio(BARE, 1.0, bare(Workload::MIXED, usual.burst), y)];
    for threads in THREADS {
        for (series, window_bytes) in [(WITHOUT, None), (WITH, Some(WINDOW_BYTES))] {
            let task = RemioTask { threads, window_bytes, ..usual };
            trials.push(Trial::remio(series, threads.into(), task, y));
        }
    }
    trials
}

//! Single I/O by an increasing number of threads: panels for throughput, bytes in flight and completion time.

use super::{BARE, DIFFERS, PAPER, bare};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;
use crate::remio::{Combining, RemioTask, Sample, Workload};

const ONE_PAIR: &str = "single I/O, one queue pair";

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 1, section 3-A",
        title,
        x: Axis::linear("threads", ""),
        y,
        published: &[],
        statements: &[
            "IOPS peak at 4 threads and drop with more; what is in flight and the completion time go on growing: \
             the NIC is the bottleneck.",
        ],
        conditions: "RDMA WRITEs of 1 to 16 threads, one client and one server behind one switch, one queue pair.",
        how: How::Here {
            differs: &[
                DIFFERS,
                "What a software RNIC is asked for it does in the thread that asks: more threads than cores queue \
                 for cores, not in a NIC.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const IOPS: Experiment =
    panel("C.1a", "Single I/O by threads: IOPS", Axis::linear("requests", "thousand/s"), || {
        trials(Sample::kiops)
    });

pub(super) const IN_FLIGHT: Experiment =
    panel("C.1b", "Single I/O by threads: what is in flight", Axis::linear("in flight", "KiB"), || {
        trials(Sample::in_flight_kib)
    });

pub(super) const COMPLETION: Experiment = panel(
    "C.1c",
    "Single I/O by threads: completion time",
    Axis::linear("median completion time", "µs"),
    || trials(Sample::p50_us),
);

fn trials(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let workload = Workload::RANDOM_WRITES;
    let usual = RemioTask { connections: 1, burst: 8, ..RemioTask::of(workload, Combining::Single) };
    let of = |threads: u32| Trial::remio(ONE_PAIR, threads.into(), RemioTask { threads, ..usual }, y);
    let limit = Trial::remio(BARE, 1.0, bare(workload, usual.burst), y);
    [limit].into_iter().chain([1, 2, 4, 7, 10, 16].map(of)).collect()
}

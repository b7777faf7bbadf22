//! Registering the memory of a request, compared with copying it.

use super::{DIFFERS, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::Trial;
use crate::remio::{Combining, LocalMemory, Polling, RemioTask, Sample, Workload};

pub(super) const ID: &str = "C.5b";
pub(super) const COPIED: &str = "Memcpy";
pub(super) const REGISTERED: &str = "MR registration";
/// Lengths of a request in bytes.
pub(super) const LENS_BYTES: [u32; 7] = [4 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// The paper's threshold in user space.
pub(super) const THRESHOLD_BYTES: f64 = 928.0 * 1024.0;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 5b, section 4-A",
    title: "Registration against copy by size",
    x: Axis::logarithmic("request", "B"),
    y: Axis::logarithmic("median completion time", "µs"),
    published: &[],
    statements: &[
        "In user space copying is cheaper up to 928 KB, registering from there on; in kernel space registering is \
         always.",
    ],
    conditions: "Resident pages. Only the cost of registering or copying, in kernel space (5a) and user space \
                 (5b).",
    how: How::Here {
        differs: &[
            DIFFERS,
            "User space alone. WRITEs as a whole, one at a time, so the copy to the peer is in both; what a \
             request costs beyond that is the difference. The software RNIC pins nothing: registering costs it \
             system calls, not tables in a NIC.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let usual = RemioTask {
        polling: Polling::Inline,
        threads: 1,
        burst: 1,
        region_bytes: 32 << 20,
        ..RemioTask::of(Workload::RANDOM_WRITES, Combining::Single)
    };
    let mut trials = Vec::new();
    for len_bytes in LENS_BYTES {
        for (series, memory) in [(COPIED, LocalMemory::Copied), (REGISTERED, LocalMemory::RegisteredEach)] {
            let task = RemioTask { len_bytes: len_bytes as usize, memory, ..usual };
            trials.push(Trial::remio(series, len_bytes.into(), task, Sample::p50_us));
        }
    }
    trials
}

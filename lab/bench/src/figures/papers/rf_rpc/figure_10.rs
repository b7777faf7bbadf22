//! Gain by unsignalled and inlined requests.

use super::PAPER;
use crate::experiments::calls::CallTask;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::rnic::{Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::{MemoryPolicy, Transport};

const WRITE: &str = "RDMA-Write";
const RF_RPC: &str = "RF-RPC";
/// Maximum length in bytes of inlined messages: sufficient for requests of 64 bytes with header and tail.
const INLINE_MAX_BYTES: u32 = 256;
/// Number of requests of which one is signalled, if not all are.
const SIGNAL_EVERY: u16 = 16;
/// Steps: neither optimization, unsignalled requests, unsignalled and inlined requests.
const STEPS: [(f64, MemoryPolicy); 3] = [
    (0.0, MemoryPolicy { inline_max_bytes: 0, signal_every: 1 }),
    (1.0, MemoryPolicy { inline_max_bytes: 0, signal_every: SIGNAL_EVERY }),
    (2.0, MemoryPolicy { inline_max_bytes: INLINE_MAX_BYTES, signal_every: SIGNAL_EVERY }),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.10",
    place: "figure 10, section 5.4",
    title: "Unsignalled and inlined requests",
    x: Axis::linear("0: neither; 1: unsignalled; 2: inlined, too", ""),
    y: Axis::linear("operations", "million/s"),
    published: &[],
    statements: &[
        "Both together bring nearly 30 % in RDMA-Write and RF-RPC; unsignalled requests bring more than inlined ones.",
    ],
    conditions: "In RDMA-Write clients write to the server.",
    how: How::Here {
        differs: &[
            "WRITEs of 32 bytes, 32 outstanding on one queue pair; calls of 64 bytes there and 8 back, one at a time on \
             one connection, of which only the request can be inlined.",
            "A call’s request that is not inlined is always signalled here, so calls have no step 1.",
            "RF-RPC with batches is not measured: batches are longer than what is inlined.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for (step, memory) in STEPS {
        let tuning = Tuning {
            window: 32,
            chain: 1,
            signal_every: memory.signal_every.into(),
            inlining: Inlining::UpTo(memory.inline_max_bytes),
            ..Tuning::RATE
        };
        let (operation, transport, test) = (Operation::Write, Transport::Rc, RnicTest::Throughput);
        let write = RnicTask { operation, transport, test, len_bytes: 32, tuning };
        trials.push(Trial::at(WRITE, step, write, Sample::mops));
        if memory.signal_every == 1 || memory.inline_max_bytes > 0 {
            let call = CallTask { memory: Some(memory), ..CallTask::small("rf-rpc") };
            trials.push(Trial::at(RF_RPC, step, call, Sample::mops));
        }
    }
    trials
}

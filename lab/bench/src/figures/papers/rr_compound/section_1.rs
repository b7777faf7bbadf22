//! Streams compared with sockets and raw WRITE, by length of writes.

use super::PAPER;
use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::rnic::{Operation, RnicTask, RnicTest, Tuning};
use crate::streams::Medium;
use farcall_link::Transport;

/// Minimum length for which raw WRITEs are measured with few outstanding, as in `farcall bench verbs`.
const LONG_BYTES: usize = 4 << 10;
const LENS_BYTES: [usize; 6] = [16, 64, 512, 4 << 10, 32 << 10, 512 << 10];

pub(super) const ID: &str = "D.section-1";
pub(super) const STREAM: &str = "stream";
pub(super) const TCP: &str = "TCP";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "section I",
    title: "Streams, sockets and raw WRITE, from 16 B to 512 KB",
    x: Axis::logarithmic("write", "B"),
    y: Axis::logarithmic("rate", "GB/s"),
    published: &[],
    statements: &["RDMA is 8.6 to 15 times faster than TCP from memory to memory, from 16 B to 512 KB."],
    conditions: "sockperf over TCP and perftest over RDMA on 100 Gb/s Ethernet; the paper does not say of which figure.",
    how: How::Here {
        differs: &[
            "Between two processes of one host, both polling, one thread each: rates of writes in one direction, not \
             latencies. Raw WRITE checks nothing; of the others first and last bytes are checked while it is timed.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for len_bytes in LENS_BYTES {
        let x = len_bytes as f64;
        for (series, medium) in [(STREAM, Medium::Stream), (TCP, Medium::Tcp), ("Unix socket", Medium::Unix)]
        {
            trials.push(Trial::at(series, x, Channel::Writes(medium, len_bytes), Sample::gb_per_second));
        }
        let tuning = if len_bytes < LONG_BYTES { Tuning::RATE } else { Tuning::BANDWIDTH };
        let raw = RnicTask {
            operation: Operation::Write,
            transport: Transport::Rc,
            test: RnicTest::Throughput,
            len_bytes,
            tuning,
        };
        trials.push(Trial::at("raw WRITE", x, raw, Sample::gb_per_second));
    }
    trials
}

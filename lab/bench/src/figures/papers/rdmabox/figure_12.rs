//! A remote file system: a panel for writing and one for reading.

use super::PAPER;
use crate::experiments::line::Rival;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::files::{FilesTask, Pass, Place};
use crate::remio::{Combining, RemioTask, Workload};
use crate::ucx::UcxTest;

pub(super) const WRITE_ID: &str = "C.12a";
pub(super) const READ_ID: &str = "C.12b";
/// Bytes of one work request.
const PAGE_BYTES: usize = 4096;
pub(super) const RECORDS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
pub(super) const MERGED: &str = "engine alone, merged and chained";
pub(super) const SINGLE: &str = "engine alone, single I/O";
const LIBFABRIC: &str = "libfabric, messages back and forth";

const fn panel(
    id: &'static str,
    title: &'static str,
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 12, section 6-B",
        title,
        x: Axis::logarithmic("record", "B"),
        y: Axis::logarithmic("bandwidth", "MB/s"),
        published: &[],
        statements,
        conditions: "IOzone with 10 GB on a FUSE mount; one client, one server; at most 128 KB a request.",
        how: How::Here {
            differs: &[
                "Not IOzone, which Debian does not distribute, but its pattern: one process writes a new file record \
                 by record, writes it once more, reads it, reads it once more, for each record size. 256 MiB, or less \
                 where measurements are short. A word of each page is checked when it is read, and that is in the \
                 figures.",
                "farcall mount over one memory node, one replica, without a page cache, up to 1 MiB a request. tmpfs \
                 and a FUSE daemon by the same loop that does nothing are what it could be at most.",
                "No file systems over the rivals. The engine alone: bursts of a record’s pages of 4 KiB, adjacent. \
                 UCX: its own test of one-sided writes and reads of one buffer over shared memory. libfabric: its own \
                 ping-pong over shared memory. Accelio, Octopus and GlusterFS are not measured.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const WRITE: Experiment = panel(
    WRITE_ID,
    "A remote file system: bandwidth of writing",
    &[
        "1.5 to 2.8 times as much as over plain verbs, 1.1 to 1.6 over Accelio, 2.1 to 3.1 over UCX, 2.2 to 3.7 over \
         libfabric; 1.4 to 1.7 times as much as Octopus, 1.4 to 2.2 times as much as GlusterFS.",
    ],
    || {
        let passes = [
            ("farcall mount, write", Place::Remote, Pass::Write),
            ("farcall mount, rewrite", Place::Remote, Pass::Rewrite),
            ("limit: tmpfs, write", Place::Tmpfs, Pass::Write),
            ("limit: tmpfs, rewrite", Place::Tmpfs, Pass::Rewrite),
            ("limit: empty FUSE daemon", Place::Empty, Pass::Rewrite),
        ];
        let ucx = |record_bytes| ("UCX, ucp_put_bw", UcxTest::RemotePut(record_bytes));
        trials(&passes, Workload::ADJACENT_WRITES, ucx)
    },
);

pub(super) const READ: Experiment = panel(
    READ_ID,
    "A remote file system: bandwidth of reading",
    &[
        "2.4 to 4.8 times as much as over plain verbs, 1.2 to 2.6 over Accelio, 2.7 to 5.6 over UCX, 2.8 to 5.9 over \
         libfabric; 1.5 to 2 times as much as Octopus, 1.6 to 2.6 times as much as GlusterFS.",
    ],
    || {
        let passes = [
            ("farcall mount, read", Place::Remote, Pass::Read),
            ("farcall mount, reread", Place::Remote, Pass::Reread),
            ("limit: tmpfs, read", Place::Tmpfs, Pass::Read),
            ("limit: tmpfs, reread", Place::Tmpfs, Pass::Reread),
            ("limit: empty FUSE daemon", Place::Empty, Pass::Read),
        ];
        let ucx = |record_bytes| ("UCX, ucp_get", UcxTest::RemoteGet(record_bytes));
        trials(&passes, Workload::ADJACENT_READS, ucx)
    },
);

fn trials(
    passes: &[(&'static str, Place, Pass)],
    workload: Workload,
    ucx: fn(usize) -> (&'static str, UcxTest),
) -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth_in(1_000.0)];
    for record_bytes in RECORDS_BYTES {
        let x = record_bytes as f64;
        for &(series, place, pass) in passes {
            let task = FilesTask { place, pass, record_bytes };
            trials.push(Trial::at(series, x, task, Sample::mb_per_second));
        }
        for (series, combining) in [(MERGED, Combining::MergeAndChain), (SINGLE, Combining::Single)] {
            let burst = (record_bytes / PAGE_BYTES) as u32;
            let task = RemioTask { threads: 1, burst, ..RemioTask::of(workload, combining) };
            trials.push(Trial::remio(series, x, task, |sample| sample.per_second * PAGE_BYTES as f64 / 1e6));
        }
        let (series, test) = ucx(record_bytes);
        trials.push(Trial::at(series, x, Rival::Ucx(test), Sample::mb_per_second));
        trials.push(Trial::at(LIBFABRIC, x, Rival::Libfabric(record_bytes), Sample::mb_per_second));
    }
    trials
}

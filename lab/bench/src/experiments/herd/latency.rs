//! Figure 2: latency of signalled WRITE, inlined WRITE and READ until their completion, and of ECHO. ECHO is a
//! ping-pong of inlined, unsignalled WRITEs over UC; half of it is an upper limit of an unsignalled WRITE's latency.

use super::HerdPlan;
use super::grid::{Grid, Row};
use crate::report::Column;
use crate::rnic::{Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const LENS_BYTES: [usize; 7] = [4, 16, 64, 128, 256, 512, 1024];
/// Maximum length that the paper's adapters inline, at which its curves of inlined WRITEs end.
const INLINE_MAX_BYTES: usize = 256;

/// Column indices.
pub(super) const WRITE: usize = 0;
pub(super) const INLINED_WRITE: usize = 1;
pub(super) const READ: usize = 2;
pub(super) const ECHO: usize = 3;

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let row = |len_bytes| {
        let until_completion = |operation, inlining| {
            let tuning = Tuning { signal_every: 1, inlining, ..Tuning::LATENCY };
            let (transport, test) = (Transport::Rc, RnicTest::Completion);
            Some(RnicTask { operation, transport, test, len_bytes, tuning })
        };
        let tuning = Tuning { assumes_order: plan.assumes_order, ..Tuning::LATENCY };
        let echo = RnicTask::latency(Operation::Write, Transport::Uc, len_bytes, tuning);
        let is_short = |_: &RnicTask| len_bytes <= INLINE_MAX_BYTES;
        let tasks = [
            until_completion(Operation::Write, Inlining::UpTo(0)),
            until_completion(Operation::Write, Inlining::Auto).filter(is_short),
            until_completion(Operation::Read, Inlining::UpTo(0)),
            Some(echo).filter(is_short),
        ];
        Row::new(vec![(len_bytes as u64).into()], len_bytes, tasks)
    };
    Grid {
        title: "Figure 2, mean latency in µs: signalled operations until completion (RC), half an ECHO of WRITEs (UC)",
        lead: vec![Column::new("len_bytes", "bytes")],
        columns: vec![
            Column::with_decimals("write_us", "WRITE", 3),
            Column::with_decimals("inlined_write_us", "WR-INLINE", 3),
            Column::with_decimals("read_us", "READ", 3),
            Column::with_decimals("echo_us", "ECHO / 2", 3),
        ],
        figure: |sample| sample.mean_us,
        rows: plan.lens_bytes_or(&LENS_BYTES).into_iter().map(row).collect(),
    }
}

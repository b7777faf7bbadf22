//! Throughput of one initiator whose other end is passive (except that it receives SENDs).
//!
//! The paper distinguishes in-bound and out-bound operations (figures 3 and 4): many clients against one server, and
//! one server against many clients. Between two processes there is one initiator and one target, and it makes no
//! difference which of them is called the server.

use super::HerdPlan;
use super::grid::{Grid, Row};
use crate::report::Column;
use crate::rnic::{Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const LENS_BYTES: [usize; 6] = [16, 32, 64, 128, 256, 1024];
/// Maximum inlined length, the same as in figure 2.
const INLINE_MAX_BYTES: usize = 256;

/// Column indices.
pub(super) const INLINED_UC_WRITE: usize = 0;
pub(super) const RC_READ: usize = 5;

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let row = |len_bytes| {
        // A window of requests on each connection, with one request in each half signalled.
        let windowed = |operation, transport, inlining| {
            let (qps, active_qps) = (plan.connections, plan.connections);
            let tuning =
                Tuning { chain: 1, inlining, qps, active_qps, ..Tuning::RATE }.with_window(plan.window);
            let test = RnicTest::Throughput;
            Some(RnicTask { operation, transport, test, len_bytes, tuning })
        };
        let is_short = |_: &RnicTask| len_bytes <= INLINE_MAX_BYTES;
        let tasks = [
            windowed(Operation::Write, Transport::Uc, Inlining::Auto).filter(is_short),
            windowed(Operation::Write, Transport::Uc, Inlining::UpTo(0)),
            windowed(Operation::Write, Transport::Rc, Inlining::UpTo(0)),
            windowed(Operation::Send, Transport::Ud, Inlining::Auto).filter(is_short),
            windowed(Operation::Send, Transport::Ud, Inlining::UpTo(0)),
            windowed(Operation::Read, Transport::Rc, Inlining::UpTo(0)),
        ];
        Row::new(vec![(len_bytes as u64).into()], len_bytes, tasks)
    };
    Grid {
        title: "Throughput of one initiator in million operations a second; of SENDs those that arrived",
        lead: vec![Column::new("len_bytes", "bytes")],
        columns: vec![
            Column::with_decimals("inlined_uc_write_mops", "WR-INLINE UC", 2),
            Column::with_decimals("uc_write_mops", "WRITE UC", 2),
            Column::with_decimals("rc_write_mops", "WRITE RC", 2),
            Column::with_decimals("inlined_ud_send_mops", "SEND-INLINE UD", 2),
            Column::with_decimals("ud_send_mops", "SEND UD", 2),
            Column::with_decimals("rc_read_mops", "READ RC", 2),
        ],
        figure: |sample| sample.per_second / 1e6,
        rows: plan.lens_bytes_or(&LENS_BYTES).into_iter().map(row).collect(),
    }
}

//! Figure 2: latency of signalled WRITE, inlined WRITE and READ until their completion, and of ECHO: a ping-pong of inlined,
//! unsignalled WRITEs over UC, whose half bounds an unsignalled WRITE's latency from above.

use super::HerdPlan;
use super::series::{Grid, Point, Row};
use crate::report::{Column, Table};
use crate::rnic::{Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const LENS_BYTES: [usize; 7] = [4, 16, 64, 128, 256, 512, 1024];
/// The paper's adapters inline no more, so its curves of inlined WRITEs end here.
const INLINE_MAX_BYTES: usize = 256;

/// The columns.
pub(super) const WRITE: usize = 0;
pub(super) const INLINED_WRITE: usize = 1;
pub(super) const READ: usize = 2;
pub(super) const ECHO: usize = 3;

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let rows = plan.lens_bytes_or(&LENS_BYTES).into_iter().map(|len_bytes| {
        let until_completion = |operation, inlining| {
            let tuning = Tuning { signal_every: 1, inlining, ..Tuning::LATENCY };
            let (transport, test) = (Transport::Rc, RnicTest::Completion);
            Point::from(RnicTask { operation, transport, test, len_bytes, tuning })
        };
        let echo = RnicTask {
            operation: Operation::Write,
            transport: Transport::Uc,
            test: RnicTest::PingPong,
            len_bytes,
            tuning: Tuning { last_byte: plan.last_byte, ..Tuning::LATENCY },
        };
        let only_short = |point: Point| if len_bytes <= INLINE_MAX_BYTES { point } else { Point::None };
        let points = vec![
            until_completion(Operation::Write, Inlining::UpTo(0)),
            only_short(until_completion(Operation::Write, Inlining::Auto)),
            until_completion(Operation::Read, Inlining::UpTo(0)),
            only_short(echo.into()),
        ];
        Row { len_bytes, points }
    });
    Grid { rows: rows.collect() }
}

pub(super) fn table(grid: &Grid) -> Table {
    let mut table = Table::new(
        "Figure 2, mean latency in µs: signalled operations until completion (RC), half an ECHO of WRITEs (UC)",
        vec![
            Column::new("len_bytes", "bytes"),
            Column::with_decimals("write_us", "WRITE", 3),
            Column::with_decimals("inlined_write_us", "WR-INLINE", 3),
            Column::with_decimals("read_us", "READ", 3),
            Column::with_decimals("echo_us", "ECHO / 2", 3),
        ],
    );
    for row in &grid.rows {
        let mut cells = vec![(row.len_bytes as u64).into()];
        cells.extend(row.points.iter().map(|point| point.mean_us().into()));
        table.push(cells);
    }
    table
}

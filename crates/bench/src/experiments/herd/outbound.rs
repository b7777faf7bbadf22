//! Figure 4: out-bound throughput. The server issues to its clients, which are passive (of SENDs they take them).

use super::HerdPlan;
use super::inbound::windowed;
use super::series::{Grid, Point, Row};
use crate::report::{Column, Table};
use crate::rnic::{Inlining, Operation};
use farcall_link::Transport;

const LENS_BYTES: [usize; 6] = [16, 32, 64, 128, 256, 1024];
/// As in figure 2.
const INLINE_MAX_BYTES: usize = 256;

/// The columns.
pub(super) const INLINED_UC_WRITE: usize = 0;
pub(super) const INLINED_UD_SEND: usize = 1;
pub(super) const UC_WRITE: usize = 2;
pub(super) const RC_READ: usize = 4;

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let rows = plan.lens_bytes_or(&LENS_BYTES).into_iter().map(|len_bytes| {
        let point = |curve, inlining| Point::from(windowed(plan, curve, inlining, len_bytes));
        let inlined = |curve| match len_bytes <= INLINE_MAX_BYTES {
            true => point(curve, Inlining::Auto),
            false => Point::None,
        };
        let points = vec![
            inlined((Operation::Write, Transport::Uc)),
            inlined((Operation::Send, Transport::Ud)),
            point((Operation::Write, Transport::Uc), Inlining::UpTo(0)),
            point((Operation::Send, Transport::Ud), Inlining::UpTo(0)),
            point((Operation::Read, Transport::Rc), Inlining::UpTo(0)),
        ];
        Row { len_bytes, points }
    });
    Grid { rows: rows.collect() }
}

pub(super) fn table(grid: &Grid) -> Table {
    let mut table = Table::new(
        "Figure 4, out-bound throughput in million operations a second; of SENDs those that arrived",
        vec![
            Column::new("len_bytes", "bytes"),
            Column::with_decimals("inlined_uc_write_mops", "WR-INLINE UC", 2),
            Column::with_decimals("inlined_ud_send_mops", "SEND-INLINE UD", 2),
            Column::with_decimals("uc_write_mops", "WRITE UC", 2),
            Column::with_decimals("ud_send_mops", "SEND UD", 2),
            Column::with_decimals("rc_read_mops", "READ RC", 2),
        ],
    );
    for row in &grid.rows {
        let mut cells = vec![(row.len_bytes as u64).into()];
        cells.extend(row.points.iter().map(|point| point.mops().into()));
        table.push(cells);
    }
    table
}

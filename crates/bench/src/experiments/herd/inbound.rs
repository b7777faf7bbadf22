//! Figure 3: in-bound throughput. Clients issue to one server, which is passive.

use super::series::{Grid, Row};
use super::{HerdPlan, published};
use crate::report::{Cell, Column, Table};
use crate::rnic::{Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const LENS_BYTES: [usize; 6] = [16, 32, 64, 128, 256, 1024];

/// The columns.
pub(super) const UC_WRITE: usize = 0;
pub(super) const RC_WRITE: usize = 1;
pub(super) const RC_READ: usize = 2;

/// A window of requests on each connection, unsignalled but one a window.
pub(super) fn windowed(
    plan: &HerdPlan,
    (operation, transport): (Operation, Transport),
    inlining: Inlining,
    len_bytes: usize,
) -> RnicTask {
    let tuning = Tuning {
        window: plan.window,
        chain: 1,
        signal_every: (plan.window / 2).max(1),
        inlining,
        qps: plan.connections,
        active_qps: plan.connections,
        ..Tuning::RATE
    };
    RnicTask { operation, transport, test: RnicTest::Throughput, len_bytes, tuning }
}

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let rows = plan.lens_bytes_or(&LENS_BYTES).into_iter().map(|len_bytes| {
        let curves = [
            (Operation::Write, Transport::Uc),
            (Operation::Write, Transport::Rc),
            (Operation::Read, Transport::Rc),
        ];
        let points = curves.map(|curve| windowed(plan, curve, Inlining::Auto, len_bytes).into());
        Row { len_bytes, points: points.into() }
    });
    Grid { rows: rows.collect() }
}

pub(super) fn table(grid: &Grid) -> Table {
    let mut table = Table::new(
        "Figure 3, in-bound throughput in million operations a second",
        vec![
            Column::new("len_bytes", "bytes"),
            Column::with_decimals("uc_write_mops", "WRITE UC", 2),
            Column::with_decimals("rc_write_mops", "WRITE RC", 2),
            Column::with_decimals("rc_read_mops", "READ RC", 2),
            Column::new("paper_write_mops", "paper WRITE"),
            Column::new("paper_read_mops", "paper READ"),
        ],
    );
    for row in &grid.rows {
        let published = |mops: f64| match row.len_bytes <= published::INBOUND_LEN_BYTES_MAX {
            true => Cell::from(mops),
            false => Cell::None,
        };
        let mut cells = vec![(row.len_bytes as u64).into()];
        cells.extend(row.points.iter().map(|point| Cell::from(point.mops())));
        cells.push(published(published::INBOUND_WRITE_MOPS));
        cells.push(published(published::INBOUND_READ_MOPS));
        table.push(cells);
    }
    table
}

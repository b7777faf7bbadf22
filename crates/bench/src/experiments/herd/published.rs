//! What the paper publishes about its micro-benchmarks (HERD, section 3), and how it compares.

use super::series::{Grid, Row};
use super::{HerdFigure, inbound, latency, outbound};
use crate::measure::Spread;
use crate::report::{Cell, Column, Table};

/// The paper's machines.
pub(super) const SETUP: &str =
    "The paper's figures: ConnectX-3, 56 Gb/s InfiniBand, one server machine and several client machines.";
/// Why not to expect the paper's figures of the software RNIC.
pub(super) const ASYMMETRY: &str = "In-bound operations are cheaper than out-bound ones on RNICs and in the simulator, not in shared \
                                    memory: there the initiator does the work in both directions, and one process stands for all clients.";

/// In-bound WRITEs, up to [`INBOUND_LEN_BYTES_MAX`].
pub(super) const INBOUND_WRITE_MOPS: f64 = 35.0;
/// In-bound READs, up to [`INBOUND_LEN_BYTES_MAX`].
pub(super) const INBOUND_READ_MOPS: f64 = 26.0;
/// The longest messages for which those hold.
pub(super) const INBOUND_LEN_BYTES_MAX: usize = 128;

/// A statement of the paper about the ratio of two curves.
struct Claim {
    figure: HerdFigure,
    what: &'static str,
    paper: &'static str,
    /// The size it is looked at; a size that was not measured gives nothing.
    len_bytes: usize,
    ratio: fn(&Row) -> Option<f64>,
}

const CLAIMS: [Claim; 6] = [
    Claim {
        figure: HerdFigure::Latency,
        what: "one-way WRITE (half an ECHO) / READ, latency",
        paper: "about 0.5 up to 64 B",
        len_bytes: 64,
        ratio: |row| quotient(row.points[latency::ECHO].mean_us(), row.points[latency::READ].mean_us()),
    },
    Claim {
        figure: HerdFigure::Latency,
        what: "WRITE / READ, latency",
        paper: "about 1",
        len_bytes: 64,
        ratio: |row| quotient(row.points[latency::WRITE].mean_us(), row.points[latency::READ].mean_us()),
    },
    Claim {
        figure: HerdFigure::Latency,
        what: "inlined WRITE / WRITE, latency",
        paper: "significantly below 1",
        len_bytes: 64,
        ratio: |row| {
            quotient(row.points[latency::INLINED_WRITE].mean_us(), row.points[latency::WRITE].mean_us())
        },
    },
    Claim {
        figure: HerdFigure::Inbound,
        what: "in-bound WRITE / READ",
        paper: "1.34 up to 128 B",
        len_bytes: 64,
        ratio: |row| {
            let write = row.points[inbound::UC_WRITE].mops().or(row.points[inbound::RC_WRITE].mops());
            quotient(write, row.points[inbound::RC_READ].mops())
        },
    },
    Claim {
        figure: HerdFigure::Outbound,
        what: "out-bound inlined WRITE (or SEND) / READ, small",
        paper: "significantly above 1",
        len_bytes: 32,
        ratio: |row| {
            let best = [outbound::INLINED_UC_WRITE, outbound::INLINED_UD_SEND]
                .iter()
                .filter_map(|column| row.points[*column].mops())
                .max_by(|left, right| left.median.total_cmp(&right.median));
            quotient(best, row.points[outbound::RC_READ].mops())
        },
    },
    Claim {
        figure: HerdFigure::Outbound,
        what: "out-bound WRITE / READ, large",
        paper: "below 1, never below 0.5",
        len_bytes: 1024,
        ratio: |row| quotient(row.points[outbound::UC_WRITE].mops(), row.points[outbound::RC_READ].mops()),
    },
];

fn quotient(above: Option<Spread>, below: Option<Spread>) -> Option<f64> {
    Some(above?.median / below?.median)
}

/// The paper's statements beside the same ratios here.
pub(super) fn claims_table(grids: &[(HerdFigure, Grid)]) -> Table {
    let mut table = Table::new(
        "What the paper states, and the same ratio here",
        vec![
            Column::new("what", "ratio"),
            Column::new("len_bytes", "bytes"),
            Column::new("paper", "paper"),
            Column::with_decimals("here", "here", 2),
        ],
    );
    for claim in &CLAIMS {
        let Some((_, grid)) = grids.iter().find(|(figure, _)| *figure == claim.figure) else { continue };
        let here = grid.row_of(claim.len_bytes).and_then(claim.ratio);
        table.push(vec![
            claim.what.into(),
            (claim.len_bytes as u64).into(),
            claim.paper.into(),
            Cell::from(here),
        ]);
    }
    table
}

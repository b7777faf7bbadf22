//! Published results of the paper's micro-benchmarks (HERD, section 3), and their comparison with those measured here.

use super::grid::Grid;
use super::{HerdFigure, latency, throughput};
use crate::report::{Column, Table};

/// Machines of the paper.
pub(super) const SETUP: &str =
    "The paper's figures: ConnectX-3, 56 Gb/s InfiniBand, one server machine and several client machines.";
/// Reason why the paper's figures 3 and 4 have no counterpart of their own.
pub(super) const ASYMMETRY: &str = "In-bound operations are cheaper than out-bound ones on RNICs. Between two processes of one host there is one initiator and \
     one target: that difference is not measured here.";

/// A statement of the paper about the ratio of two curves.
struct Claim {
    figure: HerdFigure,
    what: &'static str,
    paper: &'static str,
    /// Message length in bytes at which the ratio is taken; if it was not measured, there is no row.
    len_bytes: usize,
    /// Column indices of numerator and denominator.
    ratio: (usize, usize),
}

const CLAIMS: [Claim; 4] = [
    Claim {
        figure: HerdFigure::Latency,
        what: "one-way WRITE (half an ECHO) / READ, latency",
        paper: "about 0.5 up to 64 B",
        len_bytes: 64,
        ratio: (latency::ECHO, latency::READ),
    },
    Claim {
        figure: HerdFigure::Latency,
        what: "WRITE / READ, latency",
        paper: "about 1",
        len_bytes: 64,
        ratio: (latency::WRITE, latency::READ),
    },
    Claim {
        figure: HerdFigure::Latency,
        what: "inlined WRITE / WRITE, latency",
        paper: "significantly below 1",
        len_bytes: 64,
        ratio: (latency::INLINED_WRITE, latency::WRITE),
    },
    Claim {
        figure: HerdFigure::Throughput,
        what: "inlined WRITE / READ, throughput",
        paper: "above 1 (1.34 in-bound)",
        len_bytes: 32,
        ratio: (throughput::INLINED_UC_WRITE, throughput::RC_READ),
    },
];

/// Returns the paper's ratios next to those measured here.
pub(super) fn claims_table(grids: &[(HerdFigure, Grid)]) -> Table {
    let columns = vec![
        Column::new("what", "ratio"),
        Column::new("len_bytes", "bytes"),
        Column::with_decimals("here", "here", 2),
        Column::new("paper", "paper"),
    ];
    let mut table = Table::new("Ratios of the paper, and the same ratios here", columns);
    for claim in &CLAIMS {
        let Some((_, grid)) = grids.iter().find(|(figure, _)| *figure == claim.figure) else { continue };
        let here = grid.ratio(claim.len_bytes, claim.ratio).into();
        table.push(vec![claim.what.into(), (claim.len_bytes as u64).into(), here, claim.paper.into()]);
    }
    table
}

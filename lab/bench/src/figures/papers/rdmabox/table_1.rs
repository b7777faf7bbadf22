//! Number of work requests of each batching strategy.

use super::{
    BATCHING_DIFFERS, DIFFERS, DOORBELL_DYN, HYBRID_DYN, MERGE_DYN, MERGE_PRE, PAPER, SINGLE_PRE, batching,
};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::remio::{Places, Sample, Workload};

pub(super) const ID: &str = "C.table-1";
const OF_SINGLE: &str = "table I: over the number of Single with the same memory";
const WRITES: Workload = Workload { name: "table-1, writes", places: Places::TwoOfSix, reads_percent: 0 };

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "table I, section 5-A",
    title: "Work requests for each request, by ways of batching",
    x: Axis::linear("0: READs; 1: WRITEs", ""),
    y: Axis::linear("work requests", "for each request"),
    published: &[
        Published { series: SINGLE_PRE, points: &[(Some(0.0), 1.0), (Some(1.0), 1.0)], source: OF_SINGLE },
        Published { series: MERGE_PRE, points: &[(Some(0.0), 0.871), (Some(1.0), 0.883)], source: OF_SINGLE },
        Published { series: MERGE_DYN, points: &[(Some(0.0), 0.833), (Some(1.0), 0.925)], source: OF_SINGLE },
        Published {
            series: DOORBELL_DYN,
            points: &[(Some(0.0), 1.0), (Some(1.0), 1.007)],
            source: OF_SINGLE,
        },
        Published {
            series: HYBRID_DYN,
            points: &[(Some(0.0), 0.833), (Some(1.0), 0.918)],
            source: OF_SINGLE,
        },
    ],
    statements: &[
        "In numbers, READs and WRITEs: Single preMR 13.2 million and 308,000, Merge preMR 11.5 million and \
         272,000, Single dynMR 13.2 million and 305,000, Merge dynMR 11 million and 282,000, Doorbell dynMR 13.2 \
         million and 307,000, Hybrid dynMR 11 million and 280,000.",
        "Chaining saves no work request: Hybrid has as many as merging.",
    ],
    conditions: "VoltDB under ETC over remote paging, as in figure 6.",
    how: How::Here {
        differs: &[DIFFERS, BATCHING_DIFFERS],
        trials: || batching(&[(0.0, Workload::TABLE_1), (1.0, WRITES)], Sample::work_per_request),
    },
    file: file!(),
};

//! E: HERD (SIGCOMM 2014); covers its design section and its micro-benchmarks of verbs.

use super::lone_gets;
use crate::baseline::Baseline;
use crate::experiments::herd::HerdFigure;
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, Paper, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{BARE_PING_PONG, Trial, levels};
use crate::rivals::Rival;
use crate::rnic::Direction;

const PAPER: Paper = Paper {
    letter: 'E',
    title: "Using RDMA Efficiently for Key-Value Services (HERD)",
    setup: "One server machine and several client machines with ConnectX-3 (56 Gb/s InfiniBand).",
    file: file!(),
};

/// Experiment without content, for struct updates.
const BLANK: Experiment = Experiment::of(&PAPER);
const PILAF: &str = "Pilaf";

/// Note on the side that issues operations.
const TWO_CLIENTS: &str = "On one host one process issues and one is passive: in-bound and out-bound operations are \
                           the same work, by another core. Between two hosts two client processes issue to two of the \
                           server half (in-bound), or the other way round (out-bound).";
/// Note on the choice of windows.
const WINDOWS: &str = "Four connections; a first run chooses the window of each point, out of six.";

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "E.2",
        place: "figure 2, section 3.2",
        title: "Latency of verbs and of ECHO by size",
        x: Axis::logarithmic("payload", "B"),
        y: Axis::linear("mean latency", "µs"),
        statements: &[
            "Up to 64 B an ECHO takes as long as a READ: a WRITE one way takes about half of a READ.",
            "Signalled WRITE and READ take alike; inlining makes small WRITEs significantly faster.",
            "No more than 256 B can be inlined.",
        ],
        conditions: "One client and one server; WRITE, WR-INLINE and READ until their completion, ECHO by inlined, \
                     unsignalled WRITEs.",
        differs: &["ECHO / 2 is half a round trip, the paper plots the whole."],
        trials: || {
            let limit = Trial::level(BARE_PING_PONG, Baseline::SharedMemory, Sample::mean_us);
            let verbs = Trial::herd(HerdFigure::Latency, &["WRITE", "WR-INLINE", "READ", "ECHO / 2"]);
            [limit].into_iter().chain(verbs).collect()
        },
        ..BLANK
    },
    Experiment {
        id: "E.3",
        place: "figure 3, section 3.2",
        title: "In-bound throughput of verbs by size",
        x: Axis::logarithmic("payload", "B"),
        y: Axis::linear("operations", "million/s"),
        published: &[
            published("WRITE UC", &[(Some(128.0), 35.0)], "section 3.2: up to 128 B"),
            published("READ RC", &[(Some(128.0), 26.0)], "section 3.2: up to 128 B"),
        ],
        statements: &[
            "Reliable WRITEs, too, are significantly faster than READs; 16 READs at most are under way on a queue \
             pair.",
        ],
        conditions: "Many client processes issue to one server; windows tuned for each point.",
        differs: &[TWO_CLIENTS, WINDOWS],
        trials: || rates(Direction::InBound, &["WRITE UC", "WRITE RC", "READ RC"]),
        ..BLANK
    },
    Experiment {
        id: "E.4",
        place: "figure 4, section 3.2",
        title: "Out-bound throughput of verbs by size",
        x: Axis::logarithmic("payload", "B"),
        y: Axis::linear("operations", "million/s"),
        statements: &[
            "Inlined WRITEs and SENDs of small size are significantly faster than READs; large ones slower, but never \
             less than half as fast.",
        ],
        conditions: "One server issues to many clients; windows tuned for each point.",
        differs: &[TWO_CLIENTS, WINDOWS, "Only SENDs over UD that arrived are counted."],
        trials: || {
            let columns = &["WR-INLINE UC", "WRITE UC", "SEND-INLINE UD", "SEND UD", "READ RC"];
            rates(Direction::OutBound, columns)
        },
        ..BLANK
    },
    Experiment {
        id: "E.systems",
        place: "section 2.3",
        title: "HERD, Pilaf and FaRM-KV: round trips of a GET",
        x: Axis::linear("system", ""),
        y: Axis::linear("round trips", "for each GET"),
        published: &[published(PILAF, &[(None, 2.6)], "section 2.3: READs of a GET on average")],
        statements: &[
            "FaRM-KV needs one READ for an inlined value, one more for others.",
            "HERD needs one round trip for any request: a WRITE there and a SEND back.",
        ],
        conditions: "Pilaf’s cuckoo table, FaRM-KV’s hopscotch neighbourhood.",
        differs: &[
            "One client that only GETs, one after the other: 16-byte keys, 32-byte values, 20,000 records. Pilaf is \
             the store farcall_kv::pilaf, three quarters full; FaRM-KV is farcall_kv::farm, a fifth full; HERD is the \
             store of this project under the preset herd.",
            "HERD’s round trips are half of the WRITEs and SENDs of a GET; what wakes a sleeper or is sent again \
             counts.",
        ],
        trials: || {
            let herd = Trial::level("HERD", lone_gets(FrontEnd::Herd), |sample| sample.verbs_per_call / 2.0);
            let rivals = [
                (PILAF, Rival::Pilaf),
                ("FaRM-KV, values inlined", Rival::Farm),
                ("FaRM-KV, values apart", Rival::FarmVar),
            ];
            levels([herd], &rivals, Sample::verbs_per_call, |rival| lone_gets(FrontEnd::Rival(rival)))
        },
        ..BLANK
    },
];

fn rates(direction: Direction, columns: &'static [&'static str]) -> Vec<Trial> {
    let limits = Trial::limits_of_one(Sample::mops);
    limits.into_iter().chain(Trial::herd_rates(direction, columns)).collect()
}

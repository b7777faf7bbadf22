//! HERD compared with Pilaf and FaRM.

use super::super::lone_gets;
use super::PAPER;
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::rivals::Rival;

const HERD: &str = "HERD";
const PILAF: &str = "Pilaf";
const FARM: &str = "FaRM-KV, values inlined";
const FARM_VAR: &str = "FaRM-KV, values apart";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "E.systems",
    place: "section 2.3",
    title: "HERD, Pilaf and FaRM-KV: round trips of a GET",
    x: Axis::linear("system", ""),
    y: Axis::linear("round trips", "for each GET"),
    published: &[Published {
        series: PILAF,
        points: &[(None, 2.6)],
        source: "section 2.3: READs of a GET on average",
    }],
    statements: &[
        "FaRM-KV needs one READ for an inlined value, one more for others.",
        "HERD needs one round trip for any request: a WRITE there and a SEND back.",
    ],
    conditions: "Pilaf’s cuckoo table, FaRM-KV’s hopscotch neighbourhood.",
    how: How::Here {
        differs: &[
            "One client that only GETs, one after the other: 16-byte keys, 32-byte values, 20,000 records. Pilaf is the \
             store farcall_kv::pilaf, three quarters full; FaRM-KV is farcall_kv::farm, a fifth full; HERD is the store of \
             this project under the preset herd.",
            "HERD’s round trips are half of the WRITEs and SENDs of a GET; what wakes a sleeper or is sent again counts.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let herd = Trial::level(HERD, lone_gets(FrontEnd::Herd), |sample| sample.verbs_per_call / 2.0);
    let reads = |sample: &Sample| sample.verbs_per_call;
    let rivals = [(PILAF, Rival::Pilaf), (FARM, Rival::Farm), (FARM_VAR, Rival::FarmVar)];
    let of_reads =
        rivals.map(|(series, rival)| Trial::level(series, lone_gets(FrontEnd::Rival(rival)), reads));
    [herd].into_iter().chain(of_reads).collect()
}

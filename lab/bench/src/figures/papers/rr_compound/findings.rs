//! The paper's findings about its system, and the rules by which each is confirmed or refuted here.

use super::calls::{LONG, SATURATED, SHORT, WITH, WITHOUT};
use super::{BUSY, EVENT, GRPC, RR_COMPOUND, STREAM, TCP};
use crate::figures::verdict::{ABOVE, COUNTS, Check, Decide, Rule, at_least, at_most};

pub(in crate::figures::papers) const FINDINGS: &[Rule] = &[
    Rule {
        statement: "From memory to memory RDMA is many times faster than TCP, at every length",
        source: "section I",
        rule: "D.section-1: streams at least 2 times the rate of TCP at 16 B, 4 KiB and 512 KiB",
        decide: Decide::All(
            &[Check::Quotient("D.section-1", &[STREAM], &[TCP], &[16, 4_096, 524_288], at_least(2.0))],
            "over TCP: 16 B: {}; 4096 B: {}; 524288 B: {}",
        ),
    },
    Rule {
        statement: "At a limited rate busy polling wastes processor time that events save",
        source: "section IV-B",
        rule: "D.5b: with 32 and 128 clients more than twice as much for each request",
        decide: Decide::All(
            &[Check::Quotient("D.5b", &[BUSY], &[EVENT], &[32, 128], at_least(2.0))],
            "32 clients: {} times events’; 128 clients: {} times events’",
        ),
    },
    Rule {
        statement: "With more clients than cores BPEV has the highest throughput of the five methods",
        source: "section IV-E",
        rule: "D.8a: with 128 clients above each of the others",
        decide: Decide::All(
            &[Check::Quotient("D.8a", &["BPEV"], &["IPoIB", "BP", "BPTS", "EVENT"], &[128], ABOVE)],
            COUNTS,
        ),
    },
    Rule {
        statement: "At a limited rate BPEV is as thrifty as events, and BP is not",
        source: "section IV-E",
        rule: "D.8d: with 128 clients at most 1.5 times EVENT’s processor time, and less than BP’s",
        decide: Decide::All(
            &[
                Check::Quotient("D.8d", &["BPEV"], &["EVENT"], &[128], at_most(1.5)),
                Check::Quotient("D.8d", &["BPEV"], &["BP"], &[128], at_most(1.0)),
            ],
            "{} times EVENT’s, {} times BP’s",
        ),
    },
    Rule {
        statement: "The median latency of small calls is lower than gRPC’s",
        source: "table III",
        rule: "D.table-3: RR-Compound’s median below that of gRPC over TCP",
        decide: Decide::All(
            &[Check::Quotient("D.table-3", &[GRPC], &[RR_COMPOUND], &[50], ABOVE)],
            "gRPC’s is {} times as long",
        ),
    },
    Rule {
        statement: "More than three pollers bring nothing",
        source: "section V-B",
        rule: "D.11b: 8 pollers at most 1.1 times as fast as 3",
        decide: Decide::All(
            &[Check::Change("D.11b", &[SATURATED], [3, 8], at_most(1.1))],
            "8 pollers are {} times as fast as 3",
        ),
    },
    Rule {
        statement: "Longer rings more than double the bandwidth of long calls, and bring short ones nothing",
        source: "section V-B",
        rule: "D.12: from 32 to 256 KB at least 2 times for 128 KB, at most 1.1 times for 8 KB",
        decide: Decide::All(
            &[
                Check::Change("D.12", &[LONG], [32, 256], at_least(2.0)),
                Check::Change("D.12", &[SHORT], [32, 256], at_most(1.1)),
            ],
            "{} times for 128 KB, {} times for 8 KB",
        ),
    },
    Rule {
        statement: "A bp_timeout of about a round trip suffices, and without one BPEV is as slow as events",
        source: "section V-B",
        rule: "D.13a: 6 µs at least 1.5 times as fast as 0, and 100 µs at most 1.1 times as fast as 6",
        decide: Decide::All(
            &[
                Check::Change("D.13a", &[RR_COMPOUND], [0, 6], at_least(1.5)),
                Check::Change("D.13a", &[RR_COMPOUND], [6, 100], at_most(1.1)),
            ],
            "6 µs: {} times 0; 100 µs: {} times 6",
        ),
    },
    Rule {
        statement: "Encoding into the ring brings bandwidth",
        source: "section V-C",
        rule: "D.14: more with zero copy than without at 4, 16 and 60 KiB, which fit into one frame",
        decide: Decide::All(
            &[Check::Quotient("D.14", &[WITH], &[WITHOUT], &[4, 16, 60], ABOVE)],
            "4 KiB: {} times; 16 KiB: {} times; 60 KiB: {} times",
        ),
    },
    Rule {
        statement: "RR-Compound is faster than gRPC under every YCSB workload",
        source: "table V",
        rule: "D.table-5: more than 1 for each of the six",
        decide: Decide::All(
            &[Check::Value("D.table-5", RR_COMPOUND, &[1, 2, 3, 4, 5, 6], ABOVE)],
            "A to F: {}; {}; {}; {}; {}; {}",
        ),
    },
];

#[cfg(test)]
mod tests {
    use super::super::calls::METHODS;
    use super::*;
    use crate::figures::papers;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};
    use Verdict::{Confirmed, Refuted, Undetermined};

    fn verdicts(points: &[(&str, &str, f64, f64)]) -> Vec<Verdict> {
        verdicts_on(papers::all(), FINDINGS, &super::super::PAPER, points)
    }

    /// Returns figures that agree with the paper, or contradict it: the paper's better system is better by `better`,
    /// or worse if that is below 1.
    fn measured(better: f64) -> Vec<(&'static str, &'static str, f64, f64)> {
        let mut points = Vec::new();
        for len_bytes in [16.0, 4_096.0, 524_288.0] {
            points.push(("D.section-1", STREAM, len_bytes, better));
            points.push(("D.section-1", TCP, len_bytes, 1.0));
        }
        for clients in [32.0, 128.0] {
            points.push(("D.5b", BUSY, clients, better));
            points.push(("D.5b", EVENT, clients, 1.0));
        }
        for (series, _) in METHODS {
            let is_bpev = series == "BPEV";
            points.push(("D.8a", series, 128.0, if is_bpev { better } else { 1.0 }));
            points.push(("D.8d", series, 128.0, if is_bpev { 1.0 / better } else { 1.0 }));
        }
        points.push(("D.table-3", GRPC, 50.0, better));
        points.push(("D.table-3", RR_COMPOUND, 50.0, 1.0));
        points.push(("D.11b", SATURATED, 3.0, better));
        points.push(("D.11b", SATURATED, 8.0, 1.0));
        for (series, gain) in [(LONG, better), (SHORT, 1.0 / better)] {
            points.push(("D.12", series, 32.0, 1.0));
            points.push(("D.12", series, 256.0, gain));
        }
        for (timeout_us, y) in [(0.0, 1.0), (6.0, better), (100.0, better)] {
            points.push(("D.13a", RR_COMPOUND, timeout_us, y));
        }
        for len_kib in [4.0, 16.0, 60.0] {
            points.push(("D.14", WITH, len_kib, better));
            points.push(("D.14", WITHOUT, len_kib, 1.0));
        }
        for at in 1..=6 {
            points.push(("D.table-5", RR_COMPOUND, f64::from(at), better));
        }
        points
    }

    #[test]
    fn findings_about_the_system_follow_their_rules() {
        assert_eq!(verdicts(&measured(3.0)), [Confirmed; 10]);
        assert_eq!(verdicts(&measured(1.0 / 3.0)), [Refuted; 10]);
        assert_eq!(verdicts(&[("D.6", "Event", 1.0, 1.0)]), [Undetermined; 10]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

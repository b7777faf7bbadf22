//! The paper's findings about its system, and the rules by which each is confirmed or refuted here.

use super::{
    GRPC, METHODS, RR_COMPOUND, figure_5, figure_8, figure_11, figure_12, figure_13, figure_14, section_1,
    table_3, table_5,
};
use crate::figures::results::Results;
use crate::figures::verdict::{Decision, Finding, Range, Rule, all, counts, decided};

const RULES: [Rule; 10] = [
    Rule {
        statement: "From memory to memory RDMA is many times faster than TCP, at every length",
        source: "section I",
        rule: "D.section-1: streams at least 2 times the rate of TCP at 16 B, 4 KiB and 512 KiB",
        decide: streams_beat_sockets,
    },
    Rule {
        statement: "At a limited rate busy polling wastes processor time that events save",
        source: "section IV-B",
        rule: "D.5b: with 32 and 128 clients more than twice as much for each request",
        decide: busy_polling_wastes,
    },
    Rule {
        statement: "With more clients than cores BPEV has the highest throughput of the five methods",
        source: "section IV-E",
        rule: "D.8a: with 128 clients above each of the others",
        decide: bpev_is_best,
    },
    Rule {
        statement: "At a limited rate BPEV is as thrifty as events, and BP is not",
        source: "section IV-E",
        rule: "D.8d: with 128 clients at most 1.5 times EVENT’s processor time, and less than BP’s",
        decide: bpev_is_thrifty,
    },
    Rule {
        statement: "The median latency of small calls is lower than gRPC’s",
        source: "table III",
        rule: "D.table-3: RR-Compound’s median below that of gRPC over TCP",
        decide: small_calls_are_faster,
    },
    Rule {
        statement: "More than three pollers bring nothing",
        source: "section V-B",
        rule: "D.11b: 8 pollers at most 1.1 times as fast as 3",
        decide: few_pollers_suffice,
    },
    Rule {
        statement: "Longer rings more than double the bandwidth of long calls, and bring short ones nothing",
        source: "section V-B",
        rule: "D.12: from 32 to 256 KB at least 2 times for 128 KB, at most 1.1 times for 8 KB",
        decide: long_calls_want_long_rings,
    },
    Rule {
        statement: "A bp_timeout of about a round trip suffices, and without one BPEV is as slow as events",
        source: "section V-B",
        rule: "D.13a: 6 µs at least 1.5 times as fast as 0, and 100 µs at most 1.1 times as fast as 6",
        decide: a_round_trip_is_enough,
    },
    Rule {
        statement: "Encoding into the ring brings bandwidth",
        source: "section V-C",
        rule: "D.14: more with zero copy than without at 4, 16 and 60 KiB, which fit into one frame",
        decide: zero_copy_gains,
    },
    Rule {
        statement: "RR-Compound is faster than gRPC under every YCSB workload",
        source: "table V",
        rule: "D.table-5: more than 1 for each of the six",
        decide: every_workload_gains,
    },
];

pub(in crate::figures::papers) fn findings(results: &Results) -> Vec<Finding> {
    decided(&RULES, &super::PAPER, super::EXPERIMENTS, results)
}

const MANY: f64 = f64::INFINITY;

fn streams_beat_sockets(results: &Results) -> Decision {
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for len_bytes in [16.0, 4_096.0, 524_288.0] {
        let of = |series| Range::of(results, section_1::ID, series, len_bytes);
        let ratio = of(section_1::STREAM)?.over(of(section_1::TCP)?);
        verdicts.push(ratio.within(2.0, MANY));
        said.push(format!("{len_bytes} B: {ratio}"));
    }
    Some((all(&verdicts), format!("over TCP: {}", said.join("; "))))
}

fn busy_polling_wastes(results: &Results) -> Decision {
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for clients in [32.0, 128.0] {
        let of = |series| Range::of(results, figure_5::CPU_ID, series, clients);
        let ratio = of(super::BUSY)?.over(of(super::EVENT)?);
        verdicts.push(ratio.within(2.0, MANY));
        said.push(format!("{clients} clients: {ratio} times events’"));
    }
    Some((all(&verdicts), said.join("; ")))
}

fn bpev_is_best(results: &Results) -> Decision {
    let of = |series| Range::of(results, figure_8::RATE_ID, series, figure_8::CLIENTS_MAX);
    let bpev = of("BPEV")?;
    let mut verdicts = Vec::new();
    for (series, _) in METHODS.iter().filter(|(series, _)| *series != "BPEV") {
        verdicts.push(bpev.above(of(series)?));
    }
    Some((all(&verdicts), counts(&verdicts)))
}

fn bpev_is_thrifty(results: &Results) -> Decision {
    let of = |series| Range::of(results, figure_8::LIMITED_CPU_ID, series, figure_8::CLIENTS_MAX);
    let (over_event, over_bp) = (of("BPEV")?.over(of("EVENT")?), of("BPEV")?.over(of("BP")?));
    let verdicts = [over_event.within(0.0, 1.5), over_bp.within(0.0, 1.0)];
    Some((all(&verdicts), format!("{over_event} times EVENT’s, {over_bp} times BP’s")))
}

fn small_calls_are_faster(results: &Results) -> Decision {
    let of = |series| Range::of(results, table_3::ID, series, 50.0);
    let ratio = of(GRPC)?.over(of(RR_COMPOUND)?);
    Some((ratio.within(1.0, MANY), format!("gRPC’s is {ratio} times as long")))
}

fn few_pollers_suffice(results: &Results) -> Decision {
    let of = |pollers| Range::of(results, figure_11::HIGH_ID, figure_11::SATURATED, pollers);
    let ratio = of(8.0)?.over(of(3.0)?);
    Some((ratio.within(0.0, 1.1), format!("8 pollers are {ratio} times as fast as 3")))
}

fn long_calls_want_long_rings(results: &Results) -> Decision {
    let gain = |series| {
        let of = |ring_kib| Range::of(results, figure_12::ID, series, ring_kib);
        Some(of(256.0)?.over(of(32.0)?))
    };
    let (long, short) = (gain(figure_12::LONG)?, gain(figure_12::SHORT)?);
    let verdicts = [long.within(2.0, MANY), short.within(0.0, 1.1)];
    Some((all(&verdicts), format!("{long} times for 128 KB, {short} times for 8 KB")))
}

fn a_round_trip_is_enough(results: &Results) -> Decision {
    let of = |timeout_us| Range::of(results, figure_13::THROUGHPUT_ID, RR_COMPOUND, timeout_us);
    let (gain, more) = (of(figure_13::ENOUGH_US)?.over(of(0.0)?), of(100.0)?.over(of(figure_13::ENOUGH_US)?));
    let verdicts = [gain.within(1.5, MANY), more.within(0.0, 1.1)];
    Some((all(&verdicts), format!("6 µs: {gain} times 0; 100 µs: {more} times 6")))
}

fn zero_copy_gains(results: &Results) -> Decision {
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for len_kib in figure_14::LENS_KIB.into_iter().filter(|len_kib| *len_kib < 64) {
        let of = |series| Range::of(results, figure_14::ID, series, len_kib as f64);
        let ratio = of(figure_14::WITH)?.over(of(figure_14::WITHOUT)?);
        verdicts.push(ratio.within(1.0, MANY));
        said.push(format!("{len_kib} KiB: {ratio} times"));
    }
    Some((all(&verdicts), said.join("; ")))
}

fn every_workload_gains(results: &Results) -> Decision {
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for at in 1..=6 {
        let ratio = Range::of(results, table_5::ID, RR_COMPOUND, f64::from(at))?;
        verdicts.push(ratio.within(1.0, MANY));
        said.push(ratio.to_string());
    }
    Some((all(&verdicts), format!("A to F: {}", said.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};
    use Verdict::{CannotBeTold, Confirmed, Refuted};

    fn verdicts(points: &[(&str, &str, f64, f64)]) -> Vec<Verdict> {
        verdicts_on(super::super::EXPERIMENTS, findings, points)
    }

    /// Returns figures that agree with the paper, or contradict it: the paper's better system is better by `better`,
    /// or worse if that is below 1.
    fn measured(better: f64) -> Vec<(&'static str, &'static str, f64, f64)> {
        let mut points = Vec::new();
        for len_bytes in [16.0, 4_096.0, 524_288.0] {
            points.push((section_1::ID, section_1::STREAM, len_bytes, better));
            points.push((section_1::ID, section_1::TCP, len_bytes, 1.0));
        }
        for clients in [32.0, 128.0] {
            points.push((figure_5::CPU_ID, super::super::BUSY, clients, better));
            points.push((figure_5::CPU_ID, super::super::EVENT, clients, 1.0));
        }
        for (series, _) in METHODS {
            let is_bpev = series == "BPEV";
            points.push((figure_8::RATE_ID, series, 128.0, if is_bpev { better } else { 1.0 }));
            points.push((figure_8::LIMITED_CPU_ID, series, 128.0, if is_bpev { 1.0 / better } else { 1.0 }));
        }
        points.push((table_3::ID, GRPC, 50.0, better));
        points.push((table_3::ID, RR_COMPOUND, 50.0, 1.0));
        points.push((figure_11::HIGH_ID, figure_11::SATURATED, 3.0, better));
        points.push((figure_11::HIGH_ID, figure_11::SATURATED, 8.0, 1.0));
        for (series, gain) in [(figure_12::LONG, better), (figure_12::SHORT, 1.0 / better)] {
            points.push((figure_12::ID, series, 32.0, 1.0));
            points.push((figure_12::ID, series, 256.0, gain));
        }
        for (timeout_us, y) in [(0.0, 1.0), (6.0, better), (100.0, better)] {
            points.push((figure_13::THROUGHPUT_ID, RR_COMPOUND, timeout_us, y));
        }
        for len_kib in [4.0, 16.0, 60.0] {
            points.push((figure_14::ID, figure_14::WITH, len_kib, better));
            points.push((figure_14::ID, figure_14::WITHOUT, len_kib, 1.0));
        }
        for at in 1..=6 {
            points.push((table_5::ID, RR_COMPOUND, f64::from(at), better));
        }
        points
    }

    #[test]
    fn findings_about_the_system_follow_their_rules() {
        assert_eq!(verdicts(&measured(3.0)), [Confirmed; 10]);
        assert_eq!(verdicts(&measured(1.0 / 3.0)), [Refuted; 10]);
        assert_eq!(verdicts(&[("D.6", "Event", 1.0, 1.0)]), [CannotBeTold; 10]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

//! The paper's findings about its engine, and the rules by which each is confirmed or refuted here.

use super::{
    DOORBELL_DYN, HYBRID_DYN, MERGE_DYN, SINGLE_DYN, figure_2, figure_5, figure_6, figure_8, figure_12,
    table_1,
};
use crate::figures::results::Results;
use crate::figures::verdict::{Decision, Finding, Range, Rule, all, counts, decided, majority};

const RULES: [Rule; 6] = [
    Rule {
        statement: "Chaining saves no work request, and merging as many with it as without",
        source: "table I",
        rule: "C.table-1: as many of Doorbell as of Single, as many of Hybrid as of Merge, both within 3 %; less \
               than 0.85 for each READ",
        decide: merging_saves_work,
    },
    Rule {
        statement: "Merging and chaining together are better than single I/O and than doorbells alone",
        source: "section 5-A",
        rule: "C.6: Hybrid dynMR is above Single dynMR and Doorbell dynMR under both loads",
        decide: hybrid_is_best,
    },
    Rule {
        statement: "In user space copying is cheaper up to 928 KB, registering from there on",
        source: "section 4-A",
        rule: "C.5b: copied requests take less time at every size below, registered ones at every size above",
        decide: threshold,
    },
    Rule {
        statement: "Adaptive Polling is better than Event-Batch and Hybrid under every load",
        source: "section 3-B",
        rule: "C.2a: above both at more than half of the bursts, and below at none",
        decide: adaptive_is_best,
    },
    Rule {
        statement: "Admission control raises the IOPS of many threads",
        source: "section 5-A",
        rule: "C.8a: above those without it for more than half of the numbers of threads, and below for none",
        decide: admission_helps,
    },
    Rule {
        statement: "What a file system asks for is written and read faster merged and chained than by single I/O",
        source: "section 6-B",
        rule: "C.12: of records of several pages the engine alone is faster with merging and chaining at more than \
               half of the sizes, both ways together, and slower at none",
        decide: files_profit,
    },
];

/// Decides on all findings if at least one of the paper's experiments was run.
pub(in crate::figures::papers) fn findings(results: &Results) -> Vec<Finding> {
    decided(&RULES, &super::PAPER, super::EXPERIMENTS, results)
}

fn merging_saves_work(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for x in [0.0, 1.0] {
        let of = |series| Range::of(results, table_1::ID, series, x);
        verdicts.push(of(DOORBELL_DYN)?.over(of(SINGLE_DYN)?).within(0.97, 1.03));
        verdicts.push(of(HYBRID_DYN)?.over(of(MERGE_DYN)?).within(0.97, 1.03));
    }
    let reads = Range::of(results, table_1::ID, HYBRID_DYN, 0.0)?;
    verdicts.push(reads.within(0.0, 0.85));
    Some((all(&verdicts), format!("{reads} for each READ; {}", counts(&verdicts))))
}

fn hybrid_is_best(results: &Results) -> Decision {
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for (x, load) in [(0.0, "ETC"), (1.0, "SYS")] {
        let of = |series| Range::of(results, figure_6::ID, series, x);
        let (over_single, over_doorbell) =
            (of(HYBRID_DYN)?.over(of(SINGLE_DYN)?), of(HYBRID_DYN)?.over(of(DOORBELL_DYN)?));
        verdicts.extend([over_single, over_doorbell].map(|ratio| ratio.within(1.0, f64::INFINITY)));
        said.push(format!("{load}: {over_single} over single, {over_doorbell} over doorbells"));
    }
    Some((all(&verdicts), said.join("; ")))
}

fn threshold(results: &Results) -> Decision {
    let (mut verdicts, mut from) = (Vec::new(), None);
    for len_bytes in figure_5::LENS_BYTES.map(f64::from) {
        let of = |series| Range::of(results, figure_5::ID, series, len_bytes);
        let (copied, registered) = (of(figure_5::COPIED)?, of(figure_5::REGISTERED)?);
        let registering_wins = copied.over(registered).min > 1.0;
        from = if registering_wins { from.or(Some(len_bytes)) } else { None };
        verdicts.push(match len_bytes < figure_5::THRESHOLD_BYTES {
            true => registered.above(copied),
            false => copied.above(registered),
        });
    }
    let here = from.map_or("at no size measured".to_owned(), |from| format!("from {} KiB on", from / 1024.0));
    Some((all(&verdicts), format!("registering is cheaper {here}; {}", counts(&verdicts))))
}

fn adaptive_is_best(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for burst in figure_2::BURSTS {
        let of = |series| Range::of(results, figure_2::THROUGHPUT_ID, series, burst.into());
        for other in figure_2::OTHERS {
            verdicts.push(of(figure_2::ADAPTIVE)?.above(of(other)?));
        }
    }
    Some((majority(&verdicts), counts(&verdicts)))
}

fn admission_helps(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for threads in figure_8::THREADS {
        let of = |series| Range::of(results, figure_8::IOPS_ID, series, threads.into());
        verdicts.push(of(figure_8::WITH)?.above(of(figure_8::WITHOUT)?));
    }
    Some((majority(&verdicts), counts(&verdicts)))
}

fn files_profit(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for id in [figure_12::WRITE_ID, figure_12::READ_ID] {
        // Starts with the second length: a record of one page is one work request in either case.
        for record_bytes in &figure_12::RECORDS_BYTES[1..] {
            let of = |series| Range::of(results, id, series, *record_bytes as f64);
            verdicts.push(of(figure_12::MERGED)?.above(of(figure_12::SINGLE)?));
        }
    }
    Some((majority(&verdicts), counts(&verdicts)))
}

#[cfg(test)]
mod tests {
    use super::super::BATCHING;
    use super::*;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};

    fn verdicts(points: &[(&str, &str, f64, f64)]) -> Vec<Verdict> {
        verdicts_on(super::super::EXPERIMENTS, findings, points)
    }

    /// Returns figures like the paper's. `worth` is the factor that admission and merging gain, and `threshold` the
    /// length from which registering is faster.
    fn measured(worth: f64, threshold: f64) -> Vec<(&'static str, &'static str, f64, f64)> {
        let mut points = Vec::new();
        for (series, ..) in BATCHING {
            let merges = series.starts_with("Merge") || series.starts_with("Hybrid");
            for x in [0.0, 1.0] {
                points.push((table_1::ID, series, x, if merges { 5.0 / 6.0 } else { 1.0 }));
                points.push((figure_6::ID, series, x, if series == HYBRID_DYN { worth } else { 1.0 }));
            }
        }
        for len_bytes in figure_5::LENS_BYTES.map(f64::from) {
            let registered = if len_bytes < threshold { 2.0 } else { 0.5 };
            points.push((figure_5::ID, figure_5::COPIED, len_bytes, 1.0));
            points.push((figure_5::ID, figure_5::REGISTERED, len_bytes, registered));
        }
        for burst in figure_2::BURSTS.map(f64::from) {
            points.push((figure_2::THROUGHPUT_ID, figure_2::ADAPTIVE, burst, worth));
            points.extend(figure_2::OTHERS.map(|other| (figure_2::THROUGHPUT_ID, other, burst, 1.0)));
        }
        for threads in figure_8::THREADS.map(f64::from) {
            points.push((figure_8::IOPS_ID, figure_8::WITH, threads, worth));
            points.push((figure_8::IOPS_ID, figure_8::WITHOUT, threads, 1.0));
        }
        for id in [figure_12::WRITE_ID, figure_12::READ_ID] {
            for record_bytes in figure_12::RECORDS_BYTES.map(|bytes| bytes as f64) {
                points.push((id, figure_12::MERGED, record_bytes, worth));
                points.push((id, figure_12::SINGLE, record_bytes, 1.0));
            }
        }
        points
    }

    #[test]
    fn findings_about_the_engine_follow_their_rules() {
        use Verdict::{CannotBeTold, Confirmed, Refuted};
        assert_eq!(verdicts(&measured(1.3, figure_5::THRESHOLD_BYTES)), [Confirmed; 6]);
        let opposite = verdicts(&measured(0.7, 1.0));
        assert_eq!(
            opposite,
            [Confirmed, Refuted, Refuted, Refuted, Refuted, Refuted],
            "counts do not change"
        );
        let alike = verdicts(&measured(1.0, figure_5::THRESHOLD_BYTES));
        assert_eq!(alike, [Confirmed, CannotBeTold, Confirmed, CannotBeTold, CannotBeTold, CannotBeTold]);
        assert_eq!(verdicts(&[("C.9a", "Busy", 1.0, 1.0)]), [CannotBeTold; 6]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

//! The paper's findings about its engine, and the rules by which each is confirmed or refuted here.

use super::programs::{MERGED, RECORDS_BYTES, SINGLE};
use super::{
    ADAPTIVE, BURSTS, COPIED, DOORBELL_DYN, HYBRID_DYN, LENS_BYTES, MERGE_DYN, OTHERS, REGISTERED,
    SINGLE_DYN, THREADS, WITH, WITHOUT,
};
use crate::figures::results::Results;
use crate::figures::verdict::{ABOVE, Check, Decide, Decision, Range, Rule, all, at_most, counts};

/// The paper's threshold in user space.
const THRESHOLD_BYTES: f64 = 928.0 * 1024.0;
/// Starts with the second length: a record of one page is one work request in either case.
const LONG_RECORDS_BYTES: &[u32] = RECORDS_BYTES.split_at(1).1;

pub(in crate::figures::papers) const FINDINGS: &[Rule] = &[
    Rule {
        statement: "Chaining saves no work request, and merging as many with it as without",
        source: "table I",
        rule: "C.table-1: as many of Doorbell as of Single, as many of Hybrid as of Merge, both within 3 %; less than \
               0.85 for each READ",
        decide: Decide::All(
            &[
                Check::Value("C.table-1", HYBRID_DYN, &[0], at_most(0.85)),
                Check::Quotient("C.table-1", &[DOORBELL_DYN], &[SINGLE_DYN], &[0, 1], (0.97, 1.03)),
                Check::Quotient("C.table-1", &[HYBRID_DYN], &[MERGE_DYN], &[0, 1], (0.97, 1.03)),
            ],
            "{} for each READ; {counts}",
        ),
    },
    Rule {
        statement: "Merging and chaining together are better than single I/O and than doorbells alone",
        source: "section 5-A",
        rule: "C.6: Hybrid dynMR is above Single dynMR and Doorbell dynMR under both loads",
        decide: Decide::All(
            &[Check::Quotient("C.6", &[HYBRID_DYN], &[SINGLE_DYN, DOORBELL_DYN], &[0, 1], ABOVE)],
            "ETC: {} over single, {} over doorbells; SYS: {} over single, {} over doorbells",
        ),
    },
    Rule {
        statement: "In user space copying is cheaper up to 928 KB, registering from there on",
        source: "section 4-A",
        rule: "C.5b: copied requests take less time at every size below, registered ones at every size above",
        decide: Decide::Special(threshold),
    },
    Rule {
        statement: "Adaptive Polling is better than Event-Batch and Hybrid under every load",
        source: "section 3-B",
        rule: "C.2a: above both at more than half of the bursts, and below at none",
        decide: Decide::Majority(&[Check::Quotient("C.2a", &[ADAPTIVE], &OTHERS, &BURSTS, ABOVE)]),
    },
    Rule {
        statement: "Admission control raises the IOPS of many threads",
        source: "section 5-A",
        rule: "C.8a: above those without it for more than half of the numbers of threads, and below for none",
        decide: Decide::Majority(&[Check::Quotient("C.8a", &[WITH], &[WITHOUT], &THREADS, ABOVE)]),
    },
    Rule {
        statement: "Requests of a file system are written and read faster merged and chained than by single I/O",
        source: "section 6-B",
        rule: "C.12: of records of several pages the engine alone is faster with merging and chaining at more than \
               half of the sizes, both strategies together, and slower at none",
        decide: Decide::Majority(&[
            Check::Quotient("C.12a", &[MERGED], &[SINGLE], LONG_RECORDS_BYTES, ABOVE),
            Check::Quotient("C.12b", &[MERGED], &[SINGLE], LONG_RECORDS_BYTES, ABOVE),
        ]),
    },
];

fn threshold(results: &Results) -> Decision {
    let (mut verdicts, mut from) = (Vec::new(), None);
    for len_bytes in LENS_BYTES.map(|len_bytes| len_bytes as f64) {
        let of = |series| Range::of(results, "C.5b", series, len_bytes);
        let (copied, registered) = (of(COPIED)?, of(REGISTERED)?);
        let registering_wins = copied.over(registered).min > 1.0;
        from = if registering_wins { from.or(Some(len_bytes)) } else { None };
        verdicts.push(match len_bytes < THRESHOLD_BYTES {
            true => registered.above(copied),
            false => copied.above(registered),
        });
    }
    let here = from.map_or("at no size measured".to_owned(), |from| format!("from {} KiB on", from / 1024.0));
    Some((all(&verdicts), format!("registering is cheaper {here}; {}", counts(&verdicts))))
}

#[cfg(test)]
mod tests {
    use super::super::BATCHING;
    use super::*;
    use crate::figures::papers;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};

    fn verdicts(points: &[(&str, &str, f64, f64)]) -> Vec<Verdict> {
        verdicts_on(papers::all(), FINDINGS, &super::super::PAPER, points)
    }

    /// Returns figures like the paper's. `worth` is the factor that admission and merging gain, and `threshold` the
    /// length from which registering is faster.
    fn measured(worth: f64, threshold: f64) -> Vec<(&'static str, &'static str, f64, f64)> {
        let mut points = Vec::new();
        for (series, ..) in BATCHING {
            let merges = series.starts_with("Merge") || series.starts_with("Hybrid");
            for x in [0.0, 1.0] {
                points.push(("C.table-1", series, x, if merges { 5.0 / 6.0 } else { 1.0 }));
                points.push(("C.6", series, x, if series == HYBRID_DYN { worth } else { 1.0 }));
            }
        }
        for len_bytes in LENS_BYTES.map(|len_bytes| len_bytes as f64) {
            let registered = if len_bytes < threshold { 2.0 } else { 0.5 };
            points.push(("C.5b", COPIED, len_bytes, 1.0));
            points.push(("C.5b", REGISTERED, len_bytes, registered));
        }
        for burst in BURSTS.map(f64::from) {
            points.push(("C.2a", ADAPTIVE, burst, worth));
            points.extend(OTHERS.map(|other| ("C.2a", other, burst, 1.0)));
        }
        for threads in THREADS.map(f64::from) {
            points.push(("C.8a", WITH, threads, worth));
            points.push(("C.8a", WITHOUT, threads, 1.0));
        }
        for id in ["C.12a", "C.12b"] {
            for record_bytes in RECORDS_BYTES.map(f64::from) {
                points.push((id, MERGED, record_bytes, worth));
                points.push((id, SINGLE, record_bytes, 1.0));
            }
        }
        points
    }

    #[test]
    fn findings_about_the_engine_follow_their_rules() {
        use Verdict::{Confirmed, Refuted, Undetermined};
        assert_eq!(verdicts(&measured(1.3, THRESHOLD_BYTES)), [Confirmed; 6]);
        let opposite = verdicts(&measured(0.7, 1.0));
        assert_eq!(
            opposite,
            [Confirmed, Refuted, Refuted, Refuted, Refuted, Refuted],
            "counts do not change"
        );
        let alike = verdicts(&measured(1.0, THRESHOLD_BYTES));
        assert_eq!(alike, [Confirmed, Undetermined, Confirmed, Undetermined, Undetermined, Undetermined]);
        assert_eq!(verdicts(&[("C.9a", "Busy", 1.0, 1.0)]), [Undetermined; 6]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

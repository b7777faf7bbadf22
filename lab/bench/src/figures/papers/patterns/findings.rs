//! The findings of section 9, and the rules by which each is confirmed or refuted here.
//!
//! A rule compares the ranges over the repetitions, not the medians: overlapping ranges permit no conclusion.

use super::{REQUESTERS, RESPONSE_LENS_BYTES, SEND_SEND, SEND_WRITE, WRITE_SEND, WRITE_WRITE};
use crate::figures::results::Results;
use crate::figures::verdict::{ABOVE, COUNTS, Check, Decide, Decision, Range, Rule, at_least, at_most};

/// Names of all patterns.
const NAMES: [&str; 4] = [WRITE_WRITE, SEND_WRITE, WRITE_SEND, SEND_SEND];

pub(in crate::figures::papers) const FINDINGS: &[Rule] = &[
    Rule {
        statement: "One-to-one, WriteWrite and SendWrite perform best",
        source: "section 9 (1)",
        rule: "B.3a: both are above SendSend and WriteSend at more than half of the sizes, and below at none",
        decide: Decide::Majority(&[Check::AboveAll(
            "B.3a",
            &[WRITE_WRITE, SEND_WRITE],
            &[SEND_SEND, WRITE_SEND],
            &RESPONSE_LENS_BYTES,
        )]),
    },
    Rule {
        statement: "40 % lie between WriteWrite and SendWrite on one side, SendSend and WriteSend on the other",
        source: "section 9 (1)",
        rule: "B.3a at 64 B: the ratio lies between 1.2 and 1.6",
        decide: Decide::All(
            &[Check::Groups("B.3a", &[WRITE_WRITE, SEND_WRITE], &[SEND_SEND, WRITE_SEND], 64, (1.2, 1.6))],
            "the ratio is {}",
        ),
    },
    Rule {
        statement: "The processor cycles for each byte decline with larger messages",
        source: "section 9 (1)",
        rule: "B.4a and B.4b: for every pattern a byte costs either end less at 16 KiB than at 64 B",
        decide: Decide::All(
            &[
                Check::Change("B.4a", &NAMES, [16_384, 64], ABOVE),
                Check::Change("B.4b", &NAMES, [16_384, 64], ABOVE),
            ],
            COUNTS,
        ),
    },
    Rule {
        statement: "N-to-one, WriteWrite maintains its performance",
        source: "section 9 (2)",
        rule: "B.5-4096: with 40 requesters at least 0.9 times the bandwidth with 8",
        decide: Decide::All(
            &[Check::Change("B.5-4096", &[WRITE_WRITE], [8, 40], at_least(0.9))],
            "the ratio is {}",
        ),
    },
    Rule {
        statement: "N-to-one, WriteSend outperforms SendWrite",
        source: "section 9 (2)",
        rule: "B.5-4096: above it for more than half of the numbers of requesters, and below for none",
        decide: Decide::Majority(&[Check::Quotient(
            "B.5-4096",
            &[WRITE_SEND],
            &[SEND_WRITE],
            &REQUESTERS,
            ABOVE,
        )]),
    },
    Rule {
        statement: "The cycles of SendSend and SendWrite do not get amortised by more requesters, as those of \
                    WriteWrite and WriteSend do",
        source: "section 9 (2)",
        rule: "B.7: what a message costs with 40 requesters over what it costs with 8 is higher for SendSend and \
               SendWrite",
        decide: Decide::Special(sends_are_not_amortised),
    },
    Rule {
        statement: "The performance of WriteWrite and WriteSend N-to-M is determined by the number of empty mailboxes",
        source: "section 9 (3), with section 7",
        rule: "B.9b: bandwidth at 70 % empty at least 0.8 times that at 0 %, and at 90 % at most 0.7 times that at 70 \
               %",
        decide: Decide::All(
            &[
                Check::Change("B.9b", &[WRITE_WRITE], [0, 70], at_least(0.8)),
                Check::Change("B.9b", &[WRITE_WRITE], [70, 90], at_most(0.7)),
                Check::Change("B.9b", &[WRITE_SEND], [0, 70], at_least(0.8)),
                Check::Change("B.9b", &[WRITE_SEND], [70, 90], at_most(0.7)),
            ],
            "WriteWrite: {} at 70 %, then {}; WriteSend: {} at 70 %, then {}",
        ),
    },
];

fn sends_are_not_amortised(results: &Results) -> Decision {
    let left = |series| {
        let of = |requesters| Range::of(results, "B.7", series, requesters);
        Some(of(40.0)?.over(of(8.0)?))
    };
    let (sends, writes) =
        (left(SEND_SEND)?.and(left(SEND_WRITE)?), left(WRITE_WRITE)?.and(left(WRITE_SEND)?));
    Some((sends.above(writes), format!("the ratios are {sends} by SEND, {writes} by WRITE")))
}

#[cfg(test)]
mod tests {
    use super::super::PATTERNS;
    use super::*;
    use crate::figures::papers;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};

    type Point = (&'static str, &'static str, f64, f64);

    fn verdicts(points: &[Point]) -> Vec<Verdict> {
        verdicts_on(papers::all(), FINDINGS, &super::super::PAPER, points)
    }

    /// Returns all points that the rules use; `sends` and `writes` are the values of the patterns whose responses are
    /// SENDs and WRITEs.
    fn all_measured(sends: f64, writes: f64) -> Vec<Point> {
        let worth = |series: &str| if series.ends_with("Write") { writes } else { sends };
        let mut points = Vec::new();
        for (series, _) in PATTERNS {
            for len_bytes in RESPONSE_LENS_BYTES.map(f64::from) {
                points.push(("B.3a", series, len_bytes, worth(series)));
                for id in ["B.4a", "B.4b"] {
                    points.push((id, series, len_bytes, worth(series) / len_bytes));
                }
            }
            let asks_by_write = series.starts_with("Write");
            for requesters in REQUESTERS.map(f64::from) {
                let page = if asks_by_write { writes } else { sends };
                points.push(("B.5-4096", series, requesters, page));
                let costs = if asks_by_write { 1.0 / requesters } else { 1.0 };
                points.push(("B.7", series, requesters, costs));
            }
        }
        for series in [WRITE_WRITE, WRITE_SEND] {
            let empty = [(0.0, 10.0), (70.0, 9.0), (90.0, 4.0)];
            points.extend(empty.map(|(percent, y)| ("B.9b", series, percent, y)));
        }
        points
    }

    #[test]
    fn findings_follow_their_rules() {
        use Verdict::{Confirmed, Refuted, Undetermined};
        assert_eq!(verdicts(&all_measured(1.0, 1.4)), [Confirmed; 7]);
        let opposite = verdicts(&all_measured(1.4, 1.0));
        assert_eq!(opposite[..2], [Refuted; 2]);
        assert_eq!(opposite[4], Refuted, "SendWrite is above WriteSend");
        let alike = verdicts(&all_measured(1.0, 1.0));
        assert_eq!((alike[0], alike[1], alike[4]), (Undetermined, Refuted, Undetermined));
        let missing = verdicts(&[("B.7", "another", 0.0, 1.0)]);
        assert_eq!(missing, [Undetermined; 7]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

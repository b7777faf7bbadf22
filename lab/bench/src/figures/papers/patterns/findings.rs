//! The findings of section 9, and the rules by which each is confirmed or refuted here.
//!
//! A rule compares the ranges over the repetitions, not the medians: overlapping ranges permit no conclusion.

use super::{
    PATTERNS, REQUESTERS, RESPONSE_LENS_BYTES, SEND_SEND, SEND_WRITE, WRITE_SEND, WRITE_WRITE, figure_3a,
    figure_4a, figure_4b, figure_5, figure_7, figure_9b,
};
use crate::figures::results::Results;
use crate::figures::verdict::{Decision, Finding, Range, Rule, all, counts, decided, majority};

const FEWEST: f64 = REQUESTERS[0] as f64;
const MOST: f64 = REQUESTERS[REQUESTERS.len() - 1] as f64;

const RULES: [Rule; 7] = [
    Rule {
        statement: "One-to-one, WriteWrite and SendWrite perform best",
        source: "section 9 (1)",
        rule: "B.3a: both are above SendSend and WriteSend at more than half of the sizes, and below at none",
        decide: writes_answer_best,
    },
    Rule {
        statement: "40 % lie between WriteWrite and SendWrite on one side, SendSend and WriteSend on the other",
        source: "section 9 (1)",
        rule: "B.3a at 64 B: the ratio lies between 1.2 and 1.6",
        decide: forty_percent,
    },
    Rule {
        statement: "The processor cycles for each byte decline with larger messages",
        source: "section 9 (1)",
        rule: "B.4a and B.4b: for every pattern a byte costs either end less at 16 KiB than at 64 B",
        decide: bytes_get_cheaper,
    },
    Rule {
        statement: "N-to-one, WriteWrite maintains its performance",
        source: "section 9 (2)",
        rule: "B.5-4096: with 40 requesters at least 0.9 times the bandwidth with 8",
        decide: write_write_is_kept,
    },
    Rule {
        statement: "N-to-one, WriteSend outperforms SendWrite",
        source: "section 9 (2)",
        rule: "B.5-4096: above it for more than half of the numbers of requesters, and below for none",
        decide: write_send_overtakes,
    },
    Rule {
        statement: "The cycles of SendSend and SendWrite do not get amortised by more requesters, as those of WriteWrite and \
                    WriteSend do",
        source: "section 9 (2)",
        rule: "B.7: what a message costs with 40 requesters over what it costs with 8 is higher for SendSend and SendWrite",
        decide: sends_are_not_amortised,
    },
    Rule {
        statement: "The performance of WriteWrite and WriteSend N-to-M is determined by the number of empty mailboxes",
        source: "section 9 (3), with section 7",
        rule: "B.9b: bandwidth at 70 % empty at least 0.8 times that at 0 %, and at 90 % at most 0.7 times that at 70 %",
        decide: empty_mailboxes_decide,
    },
];

/// Decides on all findings if at least one of the paper's experiments was run.
pub(in crate::figures::papers) fn findings(results: &Results) -> Vec<Finding> {
    decided(&RULES, &super::PAPER, super::EXPERIMENTS, results)
}

fn writes_answer_best(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for len_bytes in RESPONSE_LENS_BYTES {
        let of = |series| Range::of(results, figure_3a::ID, series, len_bytes.into());
        for better in [of(WRITE_WRITE)?, of(SEND_WRITE)?] {
            verdicts.push(all(&[better.above(of(SEND_SEND)?), better.above(of(WRITE_SEND)?)]));
        }
    }
    Some((majority(&verdicts), counts(&verdicts)))
}

fn forty_percent(results: &Results) -> Decision {
    let of = |series| Range::of(results, figure_3a::ID, series, RESPONSE_LENS_BYTES[0].into());
    let ratio = of(WRITE_WRITE)?.and(of(SEND_WRITE)?).over(of(SEND_SEND)?.and(of(WRITE_SEND)?));
    Some((ratio.within(1.2, 1.6), format!("the ratio is {ratio}")))
}

fn bytes_get_cheaper(results: &Results) -> Decision {
    let [first, .., last] = RESPONSE_LENS_BYTES;
    let mut verdicts = Vec::new();
    for (series, _) in PATTERNS {
        for id in [figure_4a::ID, figure_4b::ID] {
            let of = |len_bytes: u32| Range::of(results, id, series, len_bytes.into());
            verdicts.push(of(first)?.above(of(last)?));
        }
    }
    Some((all(&verdicts), counts(&verdicts)))
}

fn write_write_is_kept(results: &Results) -> Decision {
    let of = |requesters| Range::of(results, figure_5::PAGE_ID, WRITE_WRITE, requesters);
    let ratio = of(MOST)?.over(of(FEWEST)?);
    Some((ratio.within(0.9, f64::INFINITY), format!("the ratio is {ratio}")))
}

fn write_send_overtakes(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    for requesters in REQUESTERS {
        let of = |series| Range::of(results, figure_5::PAGE_ID, series, requesters.into());
        verdicts.push(of(WRITE_SEND)?.above(of(SEND_WRITE)?));
    }
    Some((majority(&verdicts), counts(&verdicts)))
}

fn sends_are_not_amortised(results: &Results) -> Decision {
    let left = |series| {
        let of = |requesters| Range::of(results, figure_7::ID, series, requesters);
        Some(of(MOST)?.over(of(FEWEST)?))
    };
    let (sends, writes) =
        (left(SEND_SEND)?.and(left(SEND_WRITE)?), left(WRITE_WRITE)?.and(left(WRITE_SEND)?));
    Some((sends.above(writes), format!("the ratios are {sends} by SEND, {writes} by WRITE")))
}

fn empty_mailboxes_decide(results: &Results) -> Decision {
    let mut verdicts = Vec::new();
    let mut said = Vec::new();
    for series in [WRITE_WRITE, WRITE_SEND] {
        let of = |percent| Range::of(results, figure_9b::ID, series, percent);
        let (up_to_70, beyond) = (of(70.0)?.over(of(0.0)?), of(90.0)?.over(of(70.0)?));
        verdicts.extend([up_to_70.within(0.8, f64::INFINITY), beyond.within(0.0, 0.7)]);
        said.push(format!("{series}: {up_to_70} at 70 %, then {beyond}"));
    }
    Some((all(&verdicts), said.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::verdict::{Verdict, tests::verdicts_on};

    type Point = (&'static str, &'static str, f64, f64);

    fn verdicts(points: &[Point]) -> Vec<Verdict> {
        verdicts_on(super::super::EXPERIMENTS, findings, points)
    }

    /// Returns all points that the rules use; `sends` and `writes` are the values of the patterns whose responses are
    /// SENDs and WRITEs.
    fn all_measured(sends: f64, writes: f64) -> Vec<Point> {
        let worth = |series: &str| if series.ends_with("Write") { writes } else { sends };
        let mut points = Vec::new();
        for (series, _) in PATTERNS {
            for len_bytes in RESPONSE_LENS_BYTES.map(f64::from) {
                points.push((figure_3a::ID, series, len_bytes, worth(series)));
                for id in [figure_4a::ID, figure_4b::ID] {
                    points.push((id, series, len_bytes, worth(series) / len_bytes));
                }
            }
            let asks_by_write = series.starts_with("Write");
            for requesters in REQUESTERS.map(f64::from) {
                let page = if asks_by_write { writes } else { sends };
                points.push((figure_5::PAGE_ID, series, requesters, page));
                let costs = if asks_by_write { 1.0 / requesters } else { 1.0 };
                points.push((figure_7::ID, series, requesters, costs));
            }
        }
        for series in [WRITE_WRITE, WRITE_SEND] {
            let empty = [(0.0, 10.0), (70.0, 9.0), (90.0, 4.0)];
            points.extend(empty.map(|(percent, y)| (figure_9b::ID, series, percent, y)));
        }
        points
    }

    #[test]
    fn findings_follow_their_rules() {
        use Verdict::{CannotBeTold, Confirmed, Refuted};
        assert_eq!(verdicts(&all_measured(1.0, 1.4)), [Confirmed; 7]);
        let opposite = verdicts(&all_measured(1.4, 1.0));
        assert_eq!(opposite[..2], [Refuted; 2]);
        assert_eq!(opposite[4], Refuted, "SendWrite is above WriteSend");
        let alike = verdicts(&all_measured(1.0, 1.0));
        assert_eq!((alike[0], alike[1], alike[4]), (CannotBeTold, Refuted, CannotBeTold));
        let missing = verdicts(&[(figure_7::ID, "another", 0.0, 1.0)]);
        assert_eq!(missing, [CannotBeTold; 7]);
        assert!(verdicts(&[]).is_empty(), "nothing of this paper was run");
    }
}

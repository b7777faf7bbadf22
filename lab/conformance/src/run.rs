//! Runs cases.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use farcall_verbs::OpCaps;

use crate::case::{Case, Need};
use crate::deviation::Deviation;
use crate::end::End;
use crate::finding::{Finding, Verdict};
use crate::report::{CaseReport, Outcome, Report};
use crate::watchdog::Watchdog;
use crate::world::World;

/// Runs cases in a world, one after another; `tell` is called with each report.
///
/// # Errors
/// Returns the reason if the world has no ends.
pub fn run(
    world: &Rc<dyn World>,
    cases: &[Case],
    deviations: &[Deviation],
    mut tell: impl FnMut(&CaseReport),
) -> Result<Report, String> {
    let mut report = Report { world: world.name(), cases: Vec::with_capacity(cases.len()) };
    // Each of several waits of a case may last until the deadline.
    let watchdog = Watchdog::start(world.pace().deadline * 6 + Duration::from_secs(60));
    for case in cases {
        let listed: Vec<&Deviation> =
            deviations.iter().filter(|deviation| deviation.concerns(&case.name)).collect();
        let tries_max = if case.is_unreliable() { world.pace().unreliable_tries } else { 1 };
        let mut tries = 1;
        let outcome = loop {
            watchdog.begins(&case.name);
            let outcome = judge(case, try_case(world, case, !listed.is_empty())?, &listed);
            if tries == tries_max || !matches!(outcome, Outcome::Fail { .. }) {
                break outcome;
            }
            tries += 1;
        };
        let ended = CaseReport { name: case.name.clone(), source: case.source, tries, outcome };
        tell(&ended);
        report.cases.push(ended);
    }
    forgive_groups(&mut report, deviations);
    Ok(report)
}

/// A pattern that matches several cases is out of date only if none of them deviates any more.
fn forgive_groups(report: &mut Report, deviations: &[Deviation]) {
    let deviates = |deviation: &&Deviation| {
        report.cases.iter().any(|case| {
            matches!(&case.outcome, Outcome::Deviation { reason, .. } if *reason == deviation.reason)
                && deviation.concerns(&case.name)
        })
    };
    let alive: Vec<&Deviation> = deviations.iter().filter(deviates).collect();
    for case in &mut report.cases {
        let is_of_a_group = alive.iter().any(|deviation| deviation.concerns(&case.name));
        if is_of_a_group && matches!(case.outcome, Outcome::UnexpectedPass { .. }) {
            case.outcome = Outcome::Pass;
        }
    }
}

/// Result of an attempt: a missing capability, or the verdict of the case.
enum Tried {
    Lacks(String),
    Ended(Verdict),
}

fn try_case(world: &Rc<dyn World>, case: &Case, is_listed: bool) -> Result<Tried, String> {
    let [a, b] = world.executors()?;
    let mut a = End::new("initiator", a, world.clone()).map_err(|finding| finding.text)?;
    let mut b = End::new("target", b, world.clone()).map_err(|finding| finding.text)?;
    if let Some(missing) = case.needs.iter().find_map(|need| lacks(&a, need).or_else(|| lacks(&b, need))) {
        return Ok(Tried::Lacks(missing));
    }
    if is_listed {
        a.hurry();
        b.hurry();
    }
    let run = AssertUnwindSafe(|| (case.body)(&mut a, &mut b));
    let ended = catch_unwind(run).unwrap_or_else(|panic| Err(Finding::new(panic_text(&*panic))));
    // All objects that the case left must be destructible.
    let cleaned = a.reset().and_then(|()| b.reset());
    Ok(Tried::Ended(ended.and(cleaned)))
}

fn lacks(end: &End, need: &Need) -> Option<String> {
    let missing = need.ops - end.ops(need.qp_type);
    let names: Vec<&str> = missing.iter_names().map(|(name, _)| name).collect();
    (missing != OpCaps::empty()).then(|| format!("{:?} {}", need.qp_type, names.join("+")))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    format!("panic: {text}")
}

fn judge(case: &Case, tried: Tried, listed: &[&Deviation]) -> Outcome {
    match (tried, listed.first()) {
        (Tried::Lacks(capability), _) => {
            Outcome::Unsupported { capability, reason: "the device does not offer it".into() }
        }
        (Tried::Ended(Err(finding)), _) if finding.is_unsupported && !case.optional.is_empty() => {
            Outcome::Unsupported { capability: format!("{:?}", case.optional), reason: finding.text }
        }
        (Tried::Ended(Err(finding)), _) => {
            match listed.iter().find(|deviation| deviation.explains(&case.name, &finding.text)) {
                Some(known) => Outcome::Deviation { reason: known.reason, seen: finding.text },
                None => Outcome::Fail { seen: finding.text },
            }
        }
        (Tried::Ended(Ok(())), Some(listed)) => Outcome::UnexpectedPass { reason: listed.reason },
        (Tried::Ended(Ok(())), None) => Outcome::Pass,
    }
}

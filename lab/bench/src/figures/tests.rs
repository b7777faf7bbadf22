use super::*;
use crate::measure::Spread;
use farcall::select::Selection;
use std::collections::BTreeSet;
use std::path::Path;

fn experiments(names: &[&str]) -> Vec<&'static Experiment> {
    select(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap()
}

fn ids(names: &[&str]) -> Vec<&'static str> {
    experiments(names).iter().map(|experiment| experiment.id).collect()
}

/// Runs experiments that need no server of calls, until `count` steps have begun.
fn run_briefly(names: &[&str], count: usize) -> (Results, usize) {
    let env = crate::peer::tests::env(2);
    let chosen = Selection::softnic().open().unwrap();
    let experiments = experiments(names);
    let (mut begun, mut kept) = (0, 0);
    let plan = RunPlan { experiments: &experiments, chosen: &chosen, env: &env };
    let progress = &mut |_: &str| {
        begun += 1;
        begun <= count
    };
    (run(&plan, progress, |_| kept += 1), kept)
}

#[test]
fn names_stand_for_papers_experiments_and_panels() {
    assert_eq!(ids(&["A.5"]), ["A.5"]);
    assert_eq!(ids(&["a.1"]), ["A.1"], "and not A.10");
    assert_eq!(ids(&["B.3", "A.7"]), ["A.7", "B.3a", "B.3b"]);
    assert_eq!(ids(&["B.5"]), ["B.5-64", "B.5-4096", "B.5-16384"]);
    assert!(ids(&["E"]).len() >= 3 && ids(&["E"]).iter().all(|id| id.starts_with("E.")));
    assert!(ids(&["D.13"]).len() == 2 && ids(&["D"]).len() > 20);
    assert_eq!(ids(&[]).len(), papers::all().count());
    for name in ["", ".", "A.", "F", "A.99", "B.5-"] {
        let refusal =
            select(&[name.to_owned()]).err().unwrap_or_else(|| panic!("{name:?} stands for something"));
        assert!(refusal.to_string().contains("figures list"), "{refusal}");
    }
}

#[test]
fn lists_each_experiment_once_below_its_paper() {
    let ids: BTreeSet<&str> = papers::all().map(|experiment| experiment.id).collect();
    assert_eq!(ids.len(), papers::all().count());
    for experiment in papers::all() {
        assert!(experiment.id.starts_with(&format!("{}.", experiment.paper.letter)), "{}", experiment.id);
        let texts =
            [experiment.place, experiment.title, experiment.x.name, experiment.y.name, experiment.conditions];
        assert!(!texts.contains(&""), "{}: {texts:?}", experiment.id);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/figures/papers");
        assert!(experiment.paper.file.contains("src/figures/papers") && file.exists(), "{}", experiment.id);
    }
}

/// A curve has one entry, at most one number for each x, and a source for every number; hence no number is stated
/// twice.
#[test]
fn published_numbers_are_restated_once() {
    for experiment in papers::all() {
        let mut seen: Vec<(&str, Option<f64>)> = Vec::new();
        let mut curves = BTreeSet::new();
        for published in experiment.published {
            assert!(
                curves.insert(published.series),
                "{}: {} has two entries",
                experiment.id,
                published.series
            );
            assert!(
                published.source.contains("section") || published.source.contains("table"),
                "{}",
                experiment.id
            );
            for (x, y) in published.points {
                let place = (published.series, *x);
                assert!(!seen.contains(&place), "{}: {place:?} is said twice", experiment.id);
                assert!(y.is_finite() && *y > 0.0 && x.is_none_or(f64::is_finite), "{}", experiment.id);
                seen.push(place);
            }
        }
    }
}

#[test]
fn explains_unmeasured_and_differing_experiments() {
    for experiment in papers::all() {
        let trials = (experiment.trials)();
        match experiment.not_yet {
            Some(because) => {
                assert!(
                    because.ends_with('.') && because.len() > 20 && trials.is_empty(),
                    "{}",
                    experiment.id
                )
            }
            None => assert!(!experiment.differs.is_empty() && !trials.is_empty(), "{}", experiment.id),
        }
    }
}

#[test]
fn an_experiment_is_measured_and_shown() {
    let (results, kept) = run_briefly(&["A.1", "B.table-1"], usize::MAX);
    assert!(results.is_sound() && kept == 3, "{results:?}");
    let [measured, not_yet] = &results.experiments[..] else { panic!("two experiments") };
    assert!(not_yet.measured.is_empty() && not_yet.not_yet.is_some());
    for published in &measured.published {
        let series = measured.series(&published.name).expect("a measured counterpart");
        assert!(series.points.len() > 5 && series.points.iter().all(|point| point.y.median > 0.0));
    }
    assert!(Results::from_json(&results.to_json().to_string()).unwrap().is_sound());
    assert_eq!((results.seed, results.provider.as_str()), (7, "softnic"));
    let html = page(&results);
    assert!(!html.contains("http") && html.contains("11.26"), "no address, and the paper's number");
    for outcome in &results.experiments {
        assert!(html.contains(&outcome.title), "{}", outcome.title);
    }
}

#[test]
fn chooses_and_reports_a_window_once_per_point() {
    // Steps: the experiment itself, two limits, and three rates of the two shortest messages. Each curve must have a
    // sentence.
    let (results, _) = run_briefly(&["E.3"], 9);
    let [only] = &results.experiments[..] else { panic!("one experiment was begun") };
    assert_eq!(only.problems, ["interrupted before the end"]);
    let told: Vec<_> = only.notes.iter().filter(|note| note.contains("windows chosen among")).collect();
    assert!(
        told.len() == 3 && told.iter().all(|note| note.contains(" at 16 B, ") && note.contains(" at 32 B.")),
        "{told:?}"
    );
    for curve in ["WRITE UC", "WRITE RC", "READ RC"] {
        assert!(only.series(curve).is_some_and(|series| series.points[0].y.median > 0.0), "{curve}");
    }
}

#[test]
fn an_end_before_the_end_keeps_what_was_measured() {
    // Steps: the experiment itself, then three of its measurements; the fourth is refused.
    let (results, _) = run_briefly(&["A.1", "E.2"], 4);
    assert!(!results.is_complete && !results.is_sound());
    let [only] = &results.experiments[..] else { panic!("one experiment was begun") };
    assert!(!only.measured.is_empty() && only.problems == ["interrupted before the end"]);
    assert!(page(&results).contains("ended before everything was measured"));
}

#[test]
fn a_failure_of_one_experiment_is_its_problem_and_the_next_runs() {
    // This test binary cannot run a server of calls.
    let (results, _) = run_briefly(&["B.3a", "B.table-1"], usize::MAX);
    assert!(results.of("B.table-1").is_some(), "{results:?}");
    let problems = &results.of("B.3a").unwrap().problems;
    assert!(
        problems.len() == 1 && problems[0].contains("the results before it are reported"),
        "{problems:?}"
    );
    assert!(results.is_complete && !results.is_sound());
}

#[test]
fn results_of_a_newer_program_are_refused_in_words() {
    let newer = format!("{{\"farcall_figures\": {}, \"something\": \"else\"}}", FORMAT + 1);
    let refusal = Results::from_json(&newer).unwrap_err().to_string();
    assert!(
        refusal.contains("newer farcall") && refusal.contains(&format!("format {}", FORMAT + 1)),
        "{refusal}"
    );
    for nonsense in ["", "{}", "[1]", "{\"farcall_figures\": 1}"] {
        let refusal = Results::from_json(nonsense).unwrap_err().to_string();
        assert!(refusal.contains("no results of `farcall figures run`"), "{refusal}");
    }
}

const HOSTILE: &str = "<script>alert(\"1\")</script><img src='x' onerror=&>";

/// Returns results in which every text contains markup.
fn hostile() -> Results {
    let y = Spread { median: 2.0, min: 1.0, max: 3.0, repetitions: 3 };
    let hostile = || HOSTILE.to_owned();
    let mut outcome = Outcome::new(experiments(&["A.1"])[0]);
    (outcome.id, outcome.title, outcome.paper, outcome.place) = (hostile(), hostile(), hostile(), hostile());
    outcome.paper_conditions = hostile();
    (outcome.x.name, outcome.x.unit, outcome.y.name, outcome.y.unit) =
        (hostile(), hostile(), hostile(), hostile());
    outcome.published = vec![PublishedSeries {
        name: hostile(),
        points: vec![(Some(64.0), 5.0), (None, 1.0)],
        source: hostile(),
    }];
    outcome.measured = vec![Series { name: hostile(), points: vec![Measured { x: Some(64.0), y }] }];
    for texts in [&mut outcome.statements, &mut outcome.differs, &mut outcome.notes, &mut outcome.problems] {
        *texts = vec![hostile()];
    }
    outcome.not_yet = Some(hostile());
    let finding = Finding {
        statement: hostile(),
        source: hostile(),
        rule: hostile(),
        verdict: Verdict::Refuted,
        because: hostile(),
    };
    Results {
        farcall_figures: FORMAT,
        version: hostile(),
        provider: hostile(),
        seed: 0,
        conditions: vec![(hostile(), hostile())],
        notes: vec![hostile()],
        experiments: vec![outcome],
        findings: vec![finding],
        is_complete: false,
    }
}

#[test]
fn results_survive_their_file() {
    assert_eq!(Results::from_json(&hostile().to_json().to_string()).unwrap(), hostile());
}

#[test]
fn hostile_text_is_only_text_on_the_page() {
    let html = page(&hostile());
    assert!(!html.contains("<script") && !html.contains("<img") && !html.contains("onerror=&>"));
    assert!(html.matches("&lt;script&gt;").count() > 20, "every text is there: {html}");
}

#[test]
fn numbers_that_no_axis_holds_are_left_out_of_the_plot() {
    let mut results = hostile();
    let outcome = &mut results.experiments[0];
    (outcome.x.scale, outcome.y.scale) = (Scale::Logarithmic, Scale::Logarithmic);
    let y = Spread { median: 0.0, min: -1.0, max: 0.0, repetitions: 2 };
    outcome.measured[0].points.extend([Measured { x: Some(0.0), y }, Measured { x: Some(-5.0), y }]);
    outcome.published[0].points = vec![(Some(f64::MAX), f64::MAX), (Some(f64::MIN_POSITIVE), 1.0)];
    let html = page(&results);
    assert!(html.contains("<svg role=\"img\"") && !html.contains("NaN"));
    results.experiments[0].measured.clear();
    results.experiments[0].published.clear();
    assert!(!page(&results).contains("<svg"), "nothing to draw");
}

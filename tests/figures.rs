//! `farcall figures`: lists, measurements, files and pages.
#![cfg(feature = "full")]

#[path = "support/networks.rs"]
mod networks;

use networks::between_networks;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn figures(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall"))
        .arg("figures")
        .args(options)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Returns a path for this process below the tests' directory.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_list_names_what_is_measured_and_why_others_are_not() {
    let listed = text(&figures(&["list"]).stdout);
    for part in ["A.1 ", "B.3a", "C.8a", "D.13a", "E.2", "not yet measurable, because"] {
        assert!(listed.contains(part), "{part} missing in\n{listed}");
    }
    let json: Value = serde_json::from_slice(&figures(&["list", "--json"]).stdout).unwrap();
    assert!(json["experiments"].as_array().unwrap().len() > 30);
}

/// An experiment of each kind (verbs, stores, calls, one-sided I/O), from the run to the page.
#[test]
fn an_experiment_of_each_kind_gives_numbers_and_a_page() {
    let (results, page) = (place("figures.json"), place("report.html"));
    let names = ["A.2", "A.7", "A.12", "B.section-4.1", "B.table-2", "C.table-1", "D.14"];
    let run = figures(
        &[
            &["run"],
            &names[..],
            &["--json", "--repetitions", "1", "--duration-ms", "10", "--output", results.to_str().unwrap()],
        ]
        .concat(),
    );
    let json: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("no results: {run:?}"));
    let written: Value = serde_json::from_slice(&std::fs::read(&results).unwrap()).unwrap();
    assert_eq!(json, written);
    let experiments = json["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), names.len());
    let has_numbers = |experiment: &Value| !experiment["measured"].as_array().unwrap().is_empty();
    assert!(experiments.iter().any(has_numbers), "{experiments:?}");
    for experiment in experiments {
        let curves = experiment["measured"].as_array().unwrap();
        let points = curves.iter().flat_map(|curve| curve["points"].as_array().unwrap());
        let medians: Vec<f64> = points.map(|point| point["y"]["median"].as_f64().unwrap()).collect();
        // On a busy machine so short a run may complete no operation: the number is then 0, and there is a problem.
        assert!(medians.len() >= 2 && medians.iter().all(|y| y.is_finite() && *y >= 0.0), "{experiment}");
    }
    assert_eq!(json["findings"].as_array().unwrap().len(), 7 + 6 + 10, "those of B, C and D");
    let of = |curve: &str| {
        let mut curves = experiments[5]["measured"].as_array().unwrap().iter();
        let curve = curves.find(|measured| measured["name"] == curve).unwrap();
        curve["points"][0]["y"]["median"].as_f64().unwrap()
    };
    // Counts are exact, regardless of the length of the run and the load of the machine.
    let (hybrid, single, doorbell) = (of("Hybrid dynMR"), of("Single dynMR"), of("Doorbell dynMR"));
    assert_eq!((hybrid, single, doorbell), (25.0 / 30.0, 1.0, 1.0));
    let report =
        figures(&["report", "--input", results.to_str().unwrap(), "--output", page.to_str().unwrap()]);
    assert!(report.status.success(), "{report:?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(!html.contains("http") && html.matches("<svg").count() == names.len(), "{html}");
    for experiment in experiments {
        assert!(html.contains(experiment["title"].as_str().unwrap()));
    }
    std::fs::remove_file(results).unwrap();
    std::fs::remove_file(page).unwrap();
}

/// Runs the server half in one network under another host name, and the client half in the other.
const BETWEEN_NETWORKS: &str = "set -e
    unshare --uts sh -c \"hostname far-host; exec ip netns exec $NETWORK_B '$0' figures run \
        --listen 10.99.0.2:11400 --json\" > /run/said &
    server=$!
    until grep -q listening /run/said; do kill -0 $server; sleep 0.02; done
    unshare --uts sh -c \"hostname near-host; exec ip netns exec $NETWORK_A '$0' figures WHAT \
        --connect 10.99.0.2:11400 --provider softnic --repetitions 1 --json\" || true
    kill $server
    wait $server";

/// Returns the output of `figures` there; `None` if two networks cannot be created.
fn measured_between_networks(what: &str) -> Option<Value> {
    let tried = between_networks("unshare --uts true", "");
    if !tried.status.success() {
        eprintln!("SKIPPED: no two networks here: {}", text(&tried.stderr).trim());
        return None;
    }
    let output = between_networks(&BETWEEN_NETWORKS.replace("WHAT", what), "");
    let said = text(&output.stdout);
    Some(serde_json::from_str(&said).unwrap_or_else(|_| panic!("no results: {output:?}")))
}

/// Texts of problems that are caused by delays.
const LATE: [&str; 4] = ["deadline", "retries exceeded", "no answer within", "no answer came"];

/// Rates in both directions, stores, calls, one-sided I/O, echoes of verbs.
#[test]
fn measures_each_kind_of_experiment_between_two_hosts() {
    let names = ["A.1", "A.2", "A.table-3", "A.table-4", "C.table-1", "E.2"];
    let run = format!("run {} --duration-ms 5 --output /run/figures.json", names.join(" "));
    let Some(json) = measured_between_networks(&run) else { return };
    let conditions = json["conditions"].to_string();
    for host in ["near-host", "far-host", "10.99.0.2:11400", "one host only"] {
        assert!(conditions.contains(host), "{host}: {conditions}");
    }
    let experiments = json["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), names.len());
    for experiment in experiments {
        let curves = experiment["measured"].as_array().unwrap();
        // On a busy machine packets and replies may be delayed; there is then a problem.
        let problems = experiment["problems"].as_array().unwrap();
        let is_late = |problem: &Value| LATE.iter().any(|late| problem.as_str().unwrap().contains(late));
        assert!(problems.iter().all(is_late), "{problems:?}");
        assert!(!curves.is_empty() || !problems.is_empty(), "{experiment}");
        let is_bare = |curve: &Value| curve["name"].as_str().unwrap().contains("bare ping-pong");
        assert!(!curves.iter().any(is_bare), "{experiment}");
        let differs = experiment["differs"].to_string();
        assert!(differs.contains("the server half at 10.99.0.2:11400"), "{differs}");
        let has_limit = experiment["id"].as_str().is_some_and(|id| ["A.1", "A.table-4", "E.2"].contains(&id));
        assert!(
            !has_limit || differs.contains("One host only, left out: limit: bare ping-pong"),
            "{differs}"
        );
    }
}

#[test]
fn the_choice_is_measured_between_two_networks() {
    let Some(json) = measured_between_networks("auto --duration-ms 2") else { return };
    let conditions = json["conditions"].to_string();
    assert!(conditions.contains("10.99.0.2:11400") && conditions.contains("far-host"), "{conditions}");
    let tables = json["tables"].as_array().unwrap();
    let rows = tables.last().unwrap()["rows"].as_array().unwrap();
    let measured = |row: &&Value| row["per_second"].as_f64().is_some_and(|rate| rate > 0.0);
    // On a busy machine some may be delayed; there is then a problem, and the previous measurements are reported.
    assert!(rows.iter().filter(measured).count() > 10, "{json}");
}

#[test]
fn rejects_single_host_experiments_between_two_hosts() {
    // Nothing listens at this address: the experiments must be refused before connecting.
    let refused = |names: &[&str]| {
        let refused = figures(&[&["run"], names, &["--connect", "127.0.0.1:1"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        text(&refused.stderr)
    };
    let error = refused(&["D"]);
    assert!(
        error.contains("of one host only: D.4a") && error.contains("figures run D.section-1 --connect"),
        "{error}"
    );
    assert!(refused(&["D.14"]).contains("figures run A B E --connect"));
    let error = refused(&["A.1", "D.14", "E.2"]);
    assert!(error.contains("of one host only: D.14") && error.contains("figures run A.1 E.2"), "{error}");
    assert!(refused(&["A.99"]).contains("figures list"));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let refused = figures(&["run", "A.99"]);
    let error = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("farcall figures list"), "{error}");
    let newer = place("newer.json");
    std::fs::write(&newer, "{\"farcall_figures\": 99}").unwrap();
    let refused = figures(&["report", "--input", newer.to_str().unwrap()]);
    let error = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("a newer farcall wrote them"), "{error}");
    std::fs::remove_file(newer).unwrap();
    let missing = figures(&["report", "--input", "/nonexistent/figures.json"]);
    assert!(text(&missing.stderr).contains("farcall figures run"));
}

#[test]
fn measures_the_choice_next_to_every_preset_of_each_paper() {
    let run = figures(&["auto", "--json", "--repetitions", "1", "--duration-ms", "1"]);
    let json: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("no report: {run:?}"));
    let [choices, all] = [0, 1].map(|at| json["tables"][at]["rows"].as_array().unwrap());
    for paper in ["A, ", "B, ", "E: "] {
        let of_paper = choices.iter().filter(|row| row["workload"].as_str().unwrap().starts_with(paper));
        assert!(of_paper.count() > 0, "nothing of paper {paper}: {json}");
    }
    for choice in choices {
        let measured = all.iter().filter(|row| row["workload"] == choice["workload"]);
        let presets: Vec<&Value> = measured.map(|row| &row["preset"]).collect();
        assert!(presets.len() > 10 && presets.contains(&&choice["best"]), "{choice}: {presets:?}");
        assert!(presets.contains(&&choice["chosen"]), "{choice}");
    }
}

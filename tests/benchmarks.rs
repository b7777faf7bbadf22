//! The benchmarks measure what their options name.
#![cfg(feature = "full")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a short benchmark. The quality of its figures is irrelevant; the tests check that they exist.
fn bench(options: &[&str]) -> Value {
    bench_with_cache(Path::new("/nonexistent"), options)
}

/// Does the same for a user with this cache directory, in which profiles are searched for.
fn bench_with_cache(cache: &Path, options: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(options)
        .env("XDG_CACHE_HOME", cache)
        .args(["--json", "--repetitions", "1", "--duration-ms", "5"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{options:?} printed no report: {output:?}"))
}

/// Returns the cells of a column of the first table.
fn column<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    report["tables"][0]["rows"].as_array().unwrap().iter().map(|row| &row[name]).collect()
}

#[test]
fn measures_calls_of_presets_at_one_few_and_many_connections() {
    for connections in ["1", "3", "32"] {
        let options = ["bench", "rpc", "--preset", "fetch", "--preset", "send-send", "--window", "4"];
        let report = bench(&[&options[..], &["--connections", connections]].concat());
        assert_eq!(report["problems"], Value::Array(Vec::new()), "{connections} connections");
        let calls: Vec<&str> = column(&report, "what")
            .into_iter()
            .filter_map(|what| what.as_str().filter(|what| what.contains("echo, window")))
            .collect();
        assert_eq!(calls, ["fetch echo, window 4", "send-send echo, window 4"]);
        let threads = report["conditions"]["threads"].as_str().unwrap();
        assert!(threads.contains(&format!("{connections} connection")), "{threads}");
    }
}

/// Every bar belongs to a measured row, and the page loads nothing from elsewhere.
#[test]
fn a_report_is_written_as_one_page_too() {
    let path = std::env::temp_dir().join(format!("farcall-report-{}.html", std::process::id()));
    let html = ["--html", path.to_str().unwrap()];
    let commands: [&[&str]; 3] = [
        &["bench", "rpc", "--preset", "fetch"],
        &["bench", "kv", "--records", "200", "--preset", "fetch"],
        &["bench", "verbs", "write", "--transport", "rc"],
    ];
    for command in commands {
        let report = bench(&[command, &html].concat());
        let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        std::fs::remove_file(&path).unwrap();
        let tables = report["tables"].as_array().unwrap();
        assert!(page.matches("<h2>").count() == tables.len() && page.contains("<rect"), "{command:?}");
        assert!(page.contains("prefers-color-scheme: dark") && page.ends_with("</html>\n"));
        for elsewhere in ["http:", "https:", "src=", "<script", "@import"] {
            assert!(!page.contains(elsewhere), "{command:?}: {elsewhere}");
        }
    }
}

#[test]
fn measures_calls_of_any_size_and_work_with_several_clients() {
    let sizes = ["--request-len", "1000", "--reply-len", "100000", "--process-us", "10"];
    let crowd = ["--clients", "3", "--connections", "2", "--server-threads", "2", "--window", "2"];
    let presets = ["--preset", "rf-rpc", "--preset", "write-send"];
    let report = bench(&[&["bench", "rpc"][..], &presets, &sizes, &crowd].concat());
    assert_eq!(report["problems"], Value::Array(Vec::new()), "{report}");
    let row = |preset: &str| {
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        let is_wanted = |row: &&Value| row["what"].as_str().unwrap().starts_with(preset);
        rows.iter().find(is_wanted).unwrap_or_else(|| panic!("{report}"))
    };
    for preset in ["rf-rpc", "write-send"] {
        let what = row(preset)["what"].as_str().unwrap();
        assert!(what.contains("1000 B there, 10 µs, 100000 B back, window 2"), "{what}");
        assert!(row(preset)["verbs_per_call"]["median"].as_f64().unwrap() > 1.0, "{report}");
    }
    let threads = report["conditions"]["threads"].as_str().unwrap();
    assert!(threads.contains("2 server thread") && threads.contains("3 client process"), "{threads}");
}

/// The service computes for 20 ms per call, and 100 calls a second are scheduled. The n-th call therefore completes at
/// least 20 n ms after the start, and is scheduled at 10 n ms. The first 80 ms are not recorded.
#[test]
fn calls_to_a_schedule_show_how_far_a_slow_service_falls_behind() {
    let options = ["bench", "rpc", "--preset", "server-reply", "--window", "1", "--process-us", "20000"];
    let output = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(options)
        .args(["--rate", "100", "--json", "--repetitions", "1", "--duration-ms", "400"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = report["tables"][0]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["what"].as_str().unwrap().starts_with("server-reply"));
    let p50_us = row.unwrap()["p50_us"]["median"].as_f64().unwrap();
    assert!(p50_us >= 80_000.0, "{report}");
    assert!(report["problems"].to_string().contains("did not keep up"), "{report}");
    assert!(report["conditions"]["load"].as_str().unwrap().starts_with("open: 100 a second"), "{report}");
}

#[test]
fn measures_the_store_to_a_schedule_with_varied_values() {
    let options =
        ["bench", "kv", "--preset", "rf-rpc", "--preset", "farm-var", "--workload", "A", "--workload", "D"];
    let crowd = ["--clients", "2", "--connections", "2", "--window", "2", "--rate", "2000"];
    let records = ["--records", "300", "--value-len", "8-1000", "--distribution", "uniform"];
    let report = bench(&[&options[..], &crowd, &records].concat());
    let problems = report["problems"].to_string();
    for wrong in ["wrong", "refused", "no record"] {
        assert!(!problems.contains(wrong), "{problems}");
    }
    let front_ends = column(&report, "front_end");
    assert_eq!(front_ends.iter().filter(|front_end| **front_end == "farm-var").count(), 2, "{report}");
    let threads = report["conditions"]["threads"].as_str().unwrap();
    assert!(threads.contains("2 client process(es)"), "{threads}");
    assert!(report["conditions"]["records"].as_str().unwrap().contains("8 to 1000 B values"), "{report}");
}

#[test]
fn the_store_is_measured_under_the_presets_and_workloads_named() {
    let options = ["bench", "kv", "--preset", "send-write", "--workload", "all", "--window", "2"];
    let report = bench(&[&options[..], &["--records", "200"]].concat());
    let of_preset = column(&report, "front_end").into_iter().filter(|front_end| *front_end == "send-write");
    assert_eq!(of_preset.count(), 5, "one for each workload: {report}");
    assert!(column(&report, "front_end").iter().all(|front_end| *front_end != "rf-rpc"), "{report}");
}

#[test]
fn measures_batches_over_verbs_at_windows_that_fill_them() {
    let presets = ["--preset", "rf-rpc", "--preset", "rdma-memcached", "--preset", "pilaf"];
    let options = ["bench", "kv", "--window", "1", "--window", "8", "--batch", "4", "--batch", "auto:20"];
    let report = bench(&[&options[..], &presets, &["--records", "200"]].concat());
    let [front_ends, windows, batches] = ["front_end", "window", "batch"].map(|name| column(&report, name));
    let rows = front_ends.into_iter().zip(windows).zip(batches);
    let in_batches: Vec<String> = rows
        .filter_map(|((front_end, window), batch)| Some(format!("{front_end} {window} {}", batch.as_str()?)))
        .collect();
    for preset in ["rf-rpc", "rdma-memcached"] {
        for batch in ["1 auto:20", "8 4", "8 auto:20"] {
            assert!(
                in_batches.contains(&format!("\"{preset}\" {batch}")),
                "{preset} {batch}: {in_batches:?}"
            );
        }
    }
    assert_eq!(in_batches.len(), 6, "{in_batches:?}");
    let problems = report["problems"].to_string();
    assert!(!problems.contains("wrong") && !problems.contains("refused"), "{problems}");
}

#[test]
fn reports_reads_per_get_next_to_published_figures() {
    let presets = ["--preset", "pilaf", "--preset", "farm", "--preset", "farm-var"];
    let options = ["bench", "kv", "--workload", "A", "--window", "4", "--records", "200"];
    let report = bench(&[&options[..], &presets].concat());
    let tables = report["tables"].as_array().unwrap();
    let reads = tables.iter().find(|table| table["title"] == "GETs that are READs").unwrap();
    let rows: Vec<&Value> = reads["rows"].as_array().unwrap().iter().collect();
    for (store, at_least, herd) in [("pilaf", 2.0, 2.6), ("farm", 1.0, 1.0), ("farm-var", 2.0, 2.0)] {
        let row = rows.iter().find(|row| row["front_end"] == store).unwrap_or_else(|| panic!("{reads}"));
        // More READs if the GET encountered a concurrent change.
        let measured = row["reads_per_get"]["median"].as_f64().unwrap();
        assert!((at_least..at_least + 1.5).contains(&measured), "{row}");
        assert_eq!(row["published_reads_herd"], herd);
    }
    let problems = report["problems"].to_string();
    assert!(!problems.contains("wrong") && !problems.contains("refused"), "{problems}");
}

/// Returns the rows of the table whose title begins with `title`.
fn rows<'a>(report: &'a Value, title: &str) -> &'a Vec<Value> {
    let mut tables = report["tables"].as_array().unwrap().iter();
    let table = tables.find(|table| table["title"].as_str().unwrap().starts_with(title));
    table.unwrap_or_else(|| panic!("no table {title:?}: {report}"))["rows"].as_array().unwrap()
}

/// Fails unless each of these cells is a figure: a median that is positive and finite (JSON has no other).
fn assert_figures(rows: &[Value], names: &[&str]) {
    for (row, name) in rows.iter().flat_map(|row| names.iter().map(move |name| (row, name))) {
        assert!(row[name]["median"].as_f64().is_some_and(|median| median > 0.0), "{name} of {row}");
    }
}

#[test]
fn measures_streams_next_to_references_and_bounds() {
    let options = ["bench", "stream", "--size", "16,4099", "--size", "1048576", "--against", "unix,tcp"];
    let report = bench(&options);
    assert_eq!(report["problems"], Value::Array(Vec::new()), "{report}");
    let trips = rows(&report, "Round trips");
    let names: Vec<&str> = trips.iter().map(|row| row["what"].as_str().unwrap()).collect();
    let bare = "bare shared-memory ping-pong, 64 B";
    assert_eq!(names, [bare, "rpc echo, server-reply", "stream", "TCP", "Unix socket"]);
    assert_figures(trips, &["p50_us", "p99_us", "per_second"]);
    let writes = rows(&report, "Writes in one direction");
    let mut names = writes.iter().map(|row| (row["what"].as_str().unwrap(), &row["write_bytes"]));
    assert_eq!(names.next().unwrap(), ("bare copy of 1 MiB into shared memory", &(1 << 20).into()));
    for len_bytes in [16, 4099, 1 << 20] {
        for what in ["raw WRITE", "stream", "TCP", "Unix socket"] {
            assert_eq!(names.next().unwrap(), (what, &len_bytes.into()));
        }
    }
    assert_figures(writes, &["gb_per_second", "per_second"]);
    assert_figures(&writes[1..], &["writer_cpu_us_per_mib"]);
    // In so short a run the CPU time may be 0: the kernel reports that of another process in units of ticks.
    let is_told = |row: &Value| row["reader_cpu_us_per_mib"]["median"].as_f64().is_some_and(|cpu| cpu >= 0.0);
    assert!(writes[1..].iter().all(is_told), "{writes:?}");
    let ratios = rows(&report, "Ratios");
    let is_of = |row: &&Value, figure: &str, over: &str| row["figure"] == figure && row["over"] == over;
    for (figure, over) in [
        ("p50, 64 B", "rpc echo, server-reply"),
        ("p50, 64 B", "TCP"),
        ("rate, 16 B", "Unix socket"),
        ("rate, 1048576 B", "bare copy of 1 MiB into shared memory"),
    ] {
        let row = ratios.iter().find(|row| is_of(row, figure, over)).unwrap_or_else(|| panic!("{ratios:?}"));
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// Without UCX, its rows state that it is missing.
#[test]
fn streams_of_ucx_are_measured_or_said_to_be_missing() {
    let options = [
        "bench",
        "stream",
        "--size",
        "64",
        "--against",
        "ucx",
        "--json",
        "--repetitions",
        "1",
        "--duration-ms",
        "5",
    ];
    let output =
        Command::new(env!("CARGO_BIN_EXE_farcall")).args(options).env("PATH", "/nonexistent").output();
    let report: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    for (title, name) in
        [("Round trips", "UCX stream_lat (missing)"), ("Writes in one direction", "UCX stream_bw (missing)")]
    {
        let row = rows(&report, title).iter().find(|row| row["what"] == name);
        assert_eq!(row.unwrap_or_else(|| panic!("{report}"))["per_second"], Value::Null);
    }
    assert!(report["notes"].to_string().contains("apt-get install ucx-utils"), "{report}");
    assert!(!rows(&report, "Round trips").iter().any(|row| row["what"] == "TCP"), "{report}");
}

#[test]
fn measures_the_choice_next_to_the_best_preset() {
    let presets = ["--preset", "auto", "--preset", "fetch", "--preset", "server-reply"];
    let report = bench(&[&["bench", "rpc", "--window", "1", "--window", "4"], &presets[..]].concat());
    let of_auto = |what: &&Value| what.as_str().unwrap().starts_with("auto echo");
    assert_eq!(column(&report, "what").into_iter().filter(of_auto).count(), 2, "{report}");
    let told = report["conditions"]["auto"].as_str().unwrap();
    assert!(told.starts_with("server-reply: ") && told.contains("there is no profile"), "{told}");
    let choices = rows(&report, "Choice of the library");
    assert_eq!(choices.len(), 2);
    for choice in choices {
        assert_eq!(choice["chosen"], "server-reply");
        assert!(["fetch", "server-reply"].contains(&choice["best"].as_str().unwrap()), "{choice}");
        assert!(choice["ratio"].as_f64().unwrap() > 0.0, "{choice}");
        assert_eq!(choice["is_near"], "too few repetitions");
    }
    let options = ["bench", "kv", "--preset", "auto", "--window", "4", "--records", "200", "--batch", "4"];
    let report = bench(&options);
    assert_eq!(
        column(&report, "front_end").into_iter().filter(|name| *name == "auto").count(),
        2,
        "{report}"
    );
    assert!(report["conditions"]["auto"].as_str().unwrap().starts_with("server-reply: "), "{report}");
    let problems = report["problems"].to_string();
    assert!(!problems.contains("wrong") && !problems.contains("refused"), "{problems}");
}

#[test]
fn reports_the_first_choice_of_several_clients() {
    let crowd = ["--clients", "2", "--window", "4", "--batch", "4", "--preset", "auto"];
    let report = bench(&[&["bench", "rpc", "--preset", "send-send"], &crowd[..]].concat());
    assert_eq!(report["problems"], Value::Array(Vec::new()), "{report}");
    assert!(report["conditions"]["auto"].as_str().unwrap().starts_with("server-reply: "), "{report}");
    let choices = rows(&report, "Choice of the library");
    let chosen: Vec<&Value> = choices.iter().map(|choice| &choice["chosen"]).collect();
    assert_eq!(chosen, ["server-reply"; 2], "alone, and in batches: {report}");
    let report = bench(&[&["bench", "kv", "--workload", "A", "--records", "200"], &crowd[..]].concat());
    let of_auto = column(&report, "front_end").into_iter().filter(|name| *name == "auto");
    assert_eq!(of_auto.count(), 2, "{report}");
    assert!(report["conditions"]["auto"].as_str().unwrap().starts_with("server-reply: "), "{report}");
    let problems = report["problems"].to_string();
    assert!(!problems.contains("wrong") && !problems.contains("refused"), "{problems}");
}

/// Scheduled calls have the same rate under every preset, so there is no best one.
#[test]
fn reports_the_choice_for_scheduled_calls_without_comparison() {
    let presets = ["--preset", "auto", "--preset", "fetch", "--window", "4", "--rate", "500"];
    let report = bench(&[&["bench", "rpc"], &presets[..]].concat());
    assert!(report["conditions"]["auto"].as_str().unwrap().starts_with("server-reply: "), "{report}");
    assert_eq!(report["tables"].as_array().unwrap().len(), 1, "{report}");
}

/// Ratios of pairs, regardless of their values.
#[test]
fn measures_the_default_client_beside_spinning_programs() {
    let report = bench(&["bench", "kv", "--busy", "0,2"]);
    assert_eq!(report["problems"], Value::Array(Vec::new()));
    let figures = rows(&report, "GETs by each client");
    assert_eq!(figures.len(), 4, "{report}");
    assert_figures(figures, &["per_second", "p50_us", "p99_us"]);
    let ratios = rows(&report, "RPC over TCP");
    let programs: Vec<&Value> = ratios.iter().map(|row| &row["programs"]).collect();
    assert_eq!(programs, [0, 2]);
    for row in ratios {
        let ratio = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
        assert!(row["pairs"] == 20 && ratio("confidence_percent") >= 95.0, "{report}");
        for name in ["rate_ratio", "p99_ratio"] {
            let [low, high] = ["low", "high"].map(|bound| ratio(&format!("{name}_{bound}")));
            assert!(low > 0.0 && low <= ratio(name) && ratio(name) <= high, "{report}");
        }
    }
}

#[test]
fn advice_names_a_winner_that_was_measured() {
    let shape =
        ["--request", "100", "--response", "5000", "--clients", "3", "--process-us", "1", "--window", "2"];
    let report = bench(&[&["advise"], &shape[..]].concat());
    let measured = column(&report, "preset");
    if report["warnings"] != Value::Array(Vec::new()) {
        // Other programs compete for the processors, so there is no recommendation.
        assert!(
            report["tables"].as_array().unwrap().iter().all(|table| table["title"] != "Advice"),
            "{report}"
        );
        assert!(!report["notes"].to_string().contains("\"Take "), "{report}");
        return;
    }
    let advice = rows(&report, "Advice");
    let places: Vec<&str> = advice.iter().map(|row| row["place"].as_str().unwrap()).collect();
    assert_eq!(places, ["winner", "second", "auto"], "{report}");
    let presets = [&advice[0]["preset"], &advice[1]["preset"]];
    assert!(presets.iter().all(|preset| measured.contains(preset) && *preset != "auto"), "{report}");
    assert_ne!(presets[0], presets[1]);
    assert_eq!(advice[2]["preset"], "server-reply", "what the library chooses here");
    let notes: Vec<&str> =
        report["notes"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    for said in [
        &format!("Take {}: ", presets[0].as_str().unwrap())[..],
        &format!("Second is {} ", presets[1].as_str().unwrap()),
        "Left out: herd, because a result takes",
        "By itself (auto) a client takes server-reply: ",
        "does not carry over to an RNIC",
    ] {
        assert!(notes.iter().any(|note| note.contains(said)), "{said:?} is not said: {notes:#?}");
    }
    assert!(!measured.iter().any(|preset| *preset == "herd"), "{report}");
    assert_eq!(report["problems"], Value::Array(Vec::new()));
}

#[test]
fn clients_that_choose_take_the_profile_that_tune_wrote() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-cache", std::process::id()));
    bench_with_cache(&cache, &["tune"]);
    let written = cache.join("farcall/profile-softnic-softnic0-this-host.json");
    let mut profile: Value = serde_json::from_slice(&std::fs::read(&written).unwrap()).unwrap();
    let told = || {
        let report = bench_with_cache(&cache, &["bench", "rpc", "--preset", "auto", "--window", "1"]);
        report["conditions"]["auto"].as_str().unwrap().to_owned()
    };
    // Costs that determine the choice, regardless of the measured ones.
    for (reply_ns, preset) in [(1, "server-reply"), (1_000_000_000, "rf-rpc")] {
        profile["reply_ns"] = reply_ns.into();
        std::fs::write(&written, profile.to_string()).unwrap();
        let told = told();
        let place = format!("the costs of the profile {}", written.display());
        assert!(told.starts_with(&format!("{preset}: ")) && told.ends_with(&place), "{told}");
    }
    profile["version"] = "0.0.1".into();
    std::fs::write(&written, profile.to_string()).unwrap();
    let told = told();
    assert!(
        told.starts_with("server-reply: ") && told.contains("ignored") && told.contains("0.0.1"),
        "{told}"
    );
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn one_sided_requests_are_measured_by_the_choices_named() {
    let workloads = ["--workload", "adjacent-write,mixed", "--combining", "single,merge+chain"];
    let choices = ["--window-kib", "0,32", "--memory", "attached", "--waiting", "event", "--burst", "8"];
    let short = ["--region-mib", "1", "--against", "verbs"];
    let report = bench(&[&["bench", "remio"], &workloads[..], &choices, &short].concat());
    assert_eq!(report["problems"], Value::Array(Vec::new()), "{report}");
    let as_they_come = rows(&report, "Requests as they come");
    assert_eq!(as_they_come.len(), 2 * 2 * 2);
    for row in as_they_come {
        assert_eq!((&row["memory"], &row["waiting"]), (&"attached".into(), &"event".into()), "{row}");
    }
    let stacked = rows(&report, "Bursts that stack up");
    let bare = rows(&report, "Bare verbs");
    assert_eq!((stacked.len(), bare.len()), (4, 4));
    let median = |row: &Value, column: &str| {
        row[column]["median"].as_f64().unwrap_or_else(|| panic!("{column}: {row}"))
    };
    for row in as_they_come.iter().chain(stacked).chain(bare) {
        for column in [
            "per_second",
            "p50_us",
            "p99_us",
            "cpu_us_per_request",
            "work_per_request",
            "doorbells_per_request",
        ] {
            let figure = median(row, column);
            assert!(figure > 0.0 && figure.is_finite(), "{column}: {row}");
        }
    }
    for row in as_they_come.iter().filter(|row| row["how"] == "single") {
        assert_eq!(
            (median(row, "work_per_request"), median(row, "doorbells_per_request")),
            (1.0, 1.0),
            "{row}"
        );
    }
    // Of eight adjacent requests the first is posted alone, and seven are merged into one work request.
    let merged =
        stacked.iter().find(|row| row["workload"] == "adjacent-write" && row["how"] == "merge+chain");
    assert_eq!(median(merged.unwrap(), "work_per_request"), 2.0 / 8.0);
}

#[test]
fn an_unknown_preset_is_refused_with_the_names_of_all() {
    for command in ["kv", "rpc"] {
        let output = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["bench", command, "--preset", "nonsense"])
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("rf-rpc") && error.contains("all"), "{error}");
    }
}

/// Stores of other projects, with their programs.
const FOREIGN: [(&str, &str); 2] = [("memcached", "memcached"), ("redis", "redis-server")];

#[test]
fn measures_installed_programs_next_to_the_store() {
    for (store, program) in FOREIGN {
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: {program} is not installed");
            continue;
        }
        let options = ["bench", "kv", "--preset", "server-reply", "--workload", "A", "--records", "200"];
        let crowd = ["--window", "4", "--connections", "3", "--against", store];
        let report = bench(&[&options[..], &crowd].concat());
        // The report exists only if all records were stored and read back.
        let problems = report["problems"].to_string();
        assert!(!problems.contains("wrong") && !problems.contains("refused"), "{problems}");
        let [tcp, unix] = ["TCP", "Unix socket"].map(|socket| format!("{store} {socket}"));
        let front_ends = column(&report, "front_end");
        assert_eq!(front_ends[..5], ["TCP", "Unix socket", &tcp, &unix, "server-reply"], "{report}");
        assert!(report["conditions"][store].as_str().unwrap().contains("one thread"), "{report}");
    }
}

#[test]
fn a_program_that_is_not_installed_is_named_with_its_package() {
    for (store, program) in FOREIGN {
        let output = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["bench", "kv", "--repetitions", "1", "--duration-ms", "5", "--records", "200"])
            .args(["--against", store])
            .env("PATH", "/nonexistent")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(
            error.contains(&format!("{program} is not installed (Debian: apt-get install {program})")),
            "{error}"
        );
    }
}

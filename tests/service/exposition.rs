//! Metrics of a server for Prometheus, and the number of clients that it serves them to at once.

use super::*;
use std::time::Instant;

/// Returns the faults that `promtool check metrics` finds in a text of metrics, as far as they apply here.
fn lint(text: &str) -> Vec<String> {
    const KINDS: [&str; 3] = ["counter", "gauge", "histogram"];
    let (mut wrong, mut help, mut kinds) = (Vec::new(), Vec::new(), Vec::<(String, String)>::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, says) = rest.split_once(' ').unwrap_or((rest, ""));
            if says.trim().is_empty() || help.contains(&name) {
                wrong.push(format!("{name}: HELP is empty or there twice"));
            }
            help.push(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.last() != Some(&name) {
                wrong.push(format!("{name}: TYPE does not follow its HELP"));
            }
            if !KINDS.contains(&kind) || (kind == "counter") != name.ends_with("_total") {
                wrong.push(format!("{name} is a {kind}"));
            }
            if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
                wrong.push(format!("{name}: characters of its name"));
            }
            if KINDS.iter().any(|kind| name.split('_').any(|word| word == *kind)) {
                wrong.push(format!("{name} names a type"));
            }
            kinds.push((name.to_owned(), kind.to_owned()));
        } else {
            let sample = line.split(['{', ' ']).next().unwrap_or_default();
            let Some((name, kind)) = kinds.last() else {
                wrong.push(format!("{sample} has no TYPE"));
                continue;
            };
            let belongs = match sample.strip_prefix(name.as_str()) {
                Some("") => kind != "histogram",
                Some("_bucket" | "_sum" | "_count") => kind == "histogram",
                _ => false,
            };
            if !belongs {
                wrong.push(format!("{sample} behind the TYPE of {name}"));
            }
        }
    }
    wrong
}

#[test]
fn lint_finds_what_promtool_demands() {
    let right = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 1\n";
    assert_eq!(lint(right), Vec::<String>::new());
    for text in [
        "# TYPE a_total counter\na_total 1\n",
        "# HELP a_total \n# TYPE a_total counter\na_total 1\n",
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n",
        "# HELP a_gauge A.\n# TYPE a_gauge gauge\na_gauge 1\n",
        "# HELP a A.\n# TYPE a gauge\nb 1\n",
        "b 1\n",
    ] {
        assert!(!lint(text).is_empty(), "{text}");
    }
}

/// Returns the metrics of a server of each kind that this process can start.
fn metrics_of_servers() -> Vec<(&'static str, String)> {
    let kv = Server::start(&[
        "kv",
        "serve",
        "--tcp",
        "127.0.0.1:0",
        "--rpc",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--partitions",
        "2",
    ]);
    let to = format!("rpc:{}", kv.address("rpc"));
    assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
    let memory = ["memory", "serve", "--listen", "127.0.0.1:0", "--size", "64M", "--metrics", "127.0.0.1:0"];
    let memory = Server::start(&memory);
    let rpc = Server::start(&["rpc", "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    [("kv", &kv), ("memory", &memory), ("rpc", &rpc)]
        .map(|(name, server)| {
            let answer = get(&server.address("metrics"), "/metrics");
            (name, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
        })
        .to_vec()
}

#[test]
fn every_metric_has_help_and_type_as_promtool_demands() {
    for (name, text) in metrics_of_servers() {
        assert_eq!(lint(&text), Vec::<String>::new(), "{name}");
        assert!(text.lines().filter(|line| line.starts_with("# TYPE ")).count() > 5, "{name}: {text}");
        let tried = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool = match tried {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("SKIPPED: promtool is not installed (Debian's package prometheus)");
                continue;
            }
            tried => tried.unwrap(),
        };
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let checked = promtool.wait_with_output().unwrap();
        let said = [&checked.stdout[..], &checked.stderr].concat();
        assert!(
            checked.status.success() && said.is_empty(),
            "{name}: {}\n{text}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[test]
fn silent_clients_of_metrics_delay_no_scrape() {
    let server = Server::start(&["rpc", "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let address = server.address("metrics");
    let counter = |name: &str| {
        let text = get(&address, "/metrics");
        let line =
            text.lines().find(|line| line.starts_with(&format!("farcall_metrics_listener_{name}_total{{")));
        let line = line.unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    // More clients than there are slots; some have begun a request, and some do not read the reply.
    let mut silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for client in silent.iter_mut().step_by(3) {
        // The client may already have been disconnected in favour of a later one.
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    for client in silent.iter_mut().skip(1).step_by(3) {
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    }
    for _ in 0..20 {
        assert!(get(&address, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    }
    assert!(counter("displaced") >= 50.0, "200 clients had 64 places");
    assert!(counter("clients") >= 220.0);
    // The remaining clients are disconnected after a timeout.
    let begun = Instant::now();
    while counter("timed_out") == 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "no silent client was disconnected");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(get(&address, "/nowhere").lines().next(), Some("HTTP/1.1 404 Not Found"));
}

#[test]
fn refuses_to_start_when_it_cannot_serve() {
    let run = |arguments: &[&str], environment: &[(&str, &str)], limit: &str| {
        let script = format!("ulimit -n {limit} && exec timeout 120 \"$0\" \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_farcall")]).args(arguments);
        command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
    };
    let rpc = ["rpc", "serve", "--listen", "127.0.0.1:0"];
    let kv = ["kv", "serve", "--tcp", "127.0.0.1:0"];
    let kv_rpc = ["kv", "serve", "--rpc", "127.0.0.1:0"];
    let memory = ["memory", "serve", "--listen", "127.0.0.1:0", "--size", "900T"];
    let group = [("FARCALL_GROUP", "no-such-group-here")];
    for (arguments, environment, limit, part) in [
        (&rpc[..], &group[..], "1024", "no-such-group-here"),
        (&kv_rpc[..], &group, "1024", "FARCALL_GROUP"),
        (&memory[..4], &group, "1024", "FARCALL_GROUP"),
        (&rpc, &[], "64", "enough for 0 clients"),
        (&kv, &[], "64", "enough for 0 clients"),
        (&kv_rpc, &[], "70", "enough for 0 clients"),
        (&memory, &[], "1024", "this machine"),
    ] {
        let refused = run(arguments, environment, limit);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success(),
            "{arguments:?} started: {}",
            String::from_utf8_lossy(&refused.stdout)
        );
        assert!(said.contains(part) && said.contains("remedy"), "{arguments:?}: {said}");
    }
}

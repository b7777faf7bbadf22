//! A measurement between two halves, which both run on this host here.
#![cfg(feature = "full")]

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// A server half, which is killed when this is dropped.
struct ServerHalf {
    child: Child,
    address: String,
    said: BufReader<ChildStderr>,
}

impl ServerHalf {
    fn of(command: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(command)
            .args(["--listen", "127.0.0.1:0", "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Self { child, address: ready["listening"].as_str().unwrap().to_owned(), said }
    }

    /// Waits until it prints a line that contains this text.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without saying {what:?}");
        }
    }

    fn client(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
        command.args(options).args(["--connect", &self.address, "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a short measurement of a client half.
    fn measure(&self, options: &[&str]) -> Value {
        let output = self.client(&[options, &SHORT].concat()).output().unwrap();
        report(&output)
    }
}

impl Drop for ServerHalf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Options of a short run. The quality of its figures is irrelevant; the tests check that they exist.
const SHORT: [&str; 4] = ["--repetitions", "1", "--duration-ms", "5"];
/// Calls that last longer than any test.
const LONG: [&str; 8] =
    ["bench", "rpc", "--preset", "server-reply", "--repetitions", "1000", "--duration-ms", "1000"];

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("printed no report: {output:?}"))
}

fn rows(report: &Value) -> &Vec<Value> {
    report["tables"][0]["rows"].as_array().unwrap_or_else(|| panic!("{report}"))
}

fn end(mut child: Child, signal: Signal) -> Output {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut output = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    Output { status: child.wait().unwrap(), stdout: output, stderr: Vec::new() }
}

#[test]
fn measures_every_command_between_two_halves() {
    let of_calls = ["bench", "rpc", "--preset", "auto", "--preset", "send-send", "--window", "4"];
    let of_store = ["bench", "kv", "--preset", "auto", "--preset", "farm", "--window", "4"];
    let of_store = [&of_store[..], &["--workload", "A", "--records", "200"]].concat();
    let of_verbs = ["bench", "verbs", "send", "--size", "64", "--transport", "rc,ud"];
    let of_pairs = ["bench", "verbs", "qps", "--qps", "2"];
    let of_streams = ["bench", "stream", "--size", "4096", "--against", "all"];
    let cases: [(&[&str], usize, &str); 5] = [
        (&of_calls, 2, "server_cpu_us_per_call"),
        (&of_store, 3, "server_cpu_us_per_op"),
        (&of_verbs, 6, "server_cores"),
        (&of_pairs, 2, "server_cores"),
        (&of_streams, 3, "p50_us"),
    ];
    for (command, lines, figure) in cases {
        // The commands of `bench verbs` have three words.
        let words = if command[1] == "verbs" { 3 } else { 2 };
        let half = ServerHalf::of(&command[..words]);
        let report = half.measure(command);
        let problems = report["problems"].to_string();
        assert!(!problems.contains("half") && !problems.contains("wrong"), "{command:?}: {problems}");
        // The client half chooses the preset for the server half that it reaches.
        let told = &report["conditions"]["auto"];
        assert_eq!(told.is_string(), command.contains(&"auto"), "{command:?}: {report}");
        let rows = rows(&report);
        // Neither limits without Farcall nor Unix sockets, which require one host.
        assert_eq!(rows.len(), lines, "{command:?}: {report}");
        // In so short a run the CPU time may be 0: the kernel reports that of another process in units of ticks.
        let is_told = rows.iter().all(|row| row[figure]["median"].as_f64().is_some_and(|it| it >= 0.0));
        assert!(is_told, "{command:?}: no {figure}: {report}");
        let [server, client] =
            ["server_half", "client_half"].map(|half| report["conditions"][half].to_string());
        assert!(server.contains(&half.address) && server.contains("reported its own CPU time"), "{server}");
        assert!(client.contains("measured everything"), "{client}");
    }
}

#[test]
fn reports_transport_and_reader_cpu_time_of_remote_streams() {
    let half = ServerHalf::of(&["bench", "stream"]);
    let report = half.measure(&["bench", "stream", "--size", "64,65536", "--against", "tcp"]);
    assert_eq!(report["conditions"]["streams_go_by"], "one-sided WRITEs", "{report}");
    let writes = report["tables"][1]["rows"].as_array().unwrap();
    assert_eq!(writes.len(), 2 * 3, "raw WRITE, stream and TCP of each length: {report}");
    for write in writes {
        assert!(write["gb_per_second"]["median"].as_f64().unwrap() > 0.0, "{write}");
        assert!(write["reader_cpu_us_per_mib"]["median"].as_f64().unwrap() >= 0.0, "{write}");
    }
}

#[test]
fn measures_and_uses_a_profile_between_two_halves() {
    let half = ServerHalf::of(&["tune"]);
    let file = std::env::temp_dir().join(format!("farcall-halves-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let tuned = half.measure(&["tune", "--out", path]);
    assert!(tuned["conditions"]["server_half"].to_string().contains(&half.address), "{tuned}");
    let profile: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    // Both halves are on this host.
    assert_eq!(profile["peer"], "this-host");
    let called = half.measure(&["bench", "rpc", "--preset", "rf-rpc", "--window", "1", "--profile", path]);
    let tuning = &called["conditions"]["fetching_presets"];
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("this-host", "another-host")).unwrap();
    let refused = half.client(&["bench", "rpc", "--profile", path]).output().unwrap();
    fs::remove_file(&file).unwrap();
    assert!(tuning.to_string().contains("by the profile given"), "{called}");
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && words.contains("another-host"), "{words}");
}

#[test]
fn rejects_invalid_client_halves_with_a_message() {
    let half = ServerHalf::of(&["bench", "rpc"]);
    let greeting = {
        let mut line = String::new();
        BufReader::new(TcpStream::connect(&half.address).unwrap()).read_line(&mut line).unwrap();
        line
    };
    let with = |more: &[u8]| [greeting.as_bytes(), more].concat();
    let wish = |text: &str| with(&[&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat());
    let cases: [(Vec<u8>, &str); 8] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "no client half"),
        (vec![0xff; 64], "no client half"),
        (b"farcall-bench 0 0.0.1\n".to_vec(), "another version"),
        (with(&[0xff; 4]), "4294967295 bytes"),
        (wish("7"), "did not come together"),
        (
            wish(
                r#"{"Serve":{"run":1,"service":{"nic":{"provider":"softnic"},"what":{"Echo":{"threads":1}}}}}"#,
            ),
            "never begun",
        ),
        (wish(r#"{"CpuTime":{"run":1,"process":1}}"#), "never begun"),
        (wish(r#"{"Peer":{"run":1,"order":{"kind":"trace-parent","task":{},"fds":[]}}}"#), "never begun"),
    ];
    for (bytes, words) in cases {
        let mut stream = TcpStream::connect(&half.address).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&greeting) && answer.contains(words), "{words}: {answer}");
    }
    // Connections that send nothing must not delay others.
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&half.address).unwrap()).collect();
    let report = half.measure(&["bench", "rpc", "--preset", "server-reply", "--window", "1"]);
    assert_eq!(rows(&report).len(), 1, "{report}");
}

#[test]
fn recovers_a_server_half_after_a_descriptor_shortage() {
    let mut half = ServerHalf::of(&["bench", "rpc"]);
    let pid = Pid::from_child(&half.child);
    let open = fs::read_dir(format!("/proc/{}/fd", half.child.id())).unwrap().count() as u64;
    let before = prlimit(
        Some(pid),
        Resource::Nofile,
        Rlimit { current: Some(open + 2), ..getrlimit(Resource::Nofile) },
    )
    .unwrap();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&half.address).unwrap()).collect();
    half.says("new connections have to wait");
    drop(silent);
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    let report = half.measure(&["bench", "rpc", "--preset", "server-reply", "--window", "1"]);
    assert_eq!(rows(&report).len(), 1, "{report}");
}

#[test]
fn reports_a_peer_that_is_not_a_server_half() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let measure = |address: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["bench", "rpc", "--connect", address])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let answering = thread::spawn(move || {
        for said in ["HTTP/1.1 400 Bad Request\r\n", "farcall-bench 99 7.0.0\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let error = measure(&address);
    assert!(error.contains("is no server half") && error.contains("400 Bad Request"), "{error}");
    let error = measure(&address);
    assert!(error.contains("farcall-bench 99 7.0.0") && error.contains("same release"), "{error}");
    answering.join().unwrap();
    let error = measure(&address);
    assert!(error.contains("cannot reach the server half") && error.contains("--listen"), "{error}");
}

#[test]
fn runs_one_client_at_a_time_and_the_next_after_a_kill() {
    let mut half = ServerHalf::of(&["bench", "rpc"]);
    let first = half.client(&LONG).spawn().unwrap();
    half.says("a run begins");
    let second = half.client(&LONG).output().unwrap();
    assert_eq!(second.status.code(), Some(4), "{second:?}");
    assert!(report(&second)["error"]["why"].to_string().contains("busy with a run of"), "{second:?}");
    end(first, Signal::KILL);
    half.says("the run ends");
    let report = half.measure(&["bench", "rpc", "--preset", "server-reply", "--window", "1"]);
    assert_eq!(rows(&report).len(), 1, "{report}");
}

/// Starts a client half that measures figures for some time, and waits until the first are in its file.
fn figures_under_way(half: &ServerHalf, file: &Path) -> Child {
    let options = ["figures", "run", "A", "--repetitions", "1", "--duration-ms", "1"];
    let options = [&options[..], &["--output", file.to_str().unwrap()]].concat();
    let client = half.client(&options).spawn().unwrap();
    while !file.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    client
}

#[test]
fn reports_partial_figures_after_an_interrupt_of_either_half() {
    let file = |name: &str| {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("halves-{name}-{}.json", std::process::id()))
    };
    let (mine, theirs) = (file("client"), file("server"));
    let mut half = ServerHalf::of(&["figures", "run"]);
    let output = end(figures_under_way(&half, &mine), Signal::INT);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let is_partial = |results: &Value| {
        let measured =
            results["experiments"][0]["measured"].as_array().is_some_and(|curves| !curves.is_empty());
        measured && results["is_complete"] == false
    };
    assert!(is_partial(&report(&output)), "{output:?}");
    half.says("the run ends");
    // The server half continues, and is ended in the middle of the next run.
    let client = figures_under_way(&half, &theirs);
    kill_process(Pid::from_child(&half.child), Signal::INT).unwrap();
    assert!(half.child.wait().unwrap().success());
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let results = report(&output);
    let words = results["notes"].to_string();
    assert!(is_partial(&results) && words.contains("is gone: the rest was not measured"), "{words}");
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(&theirs).unwrap()).unwrap(), results);
    for file in [mine, theirs] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_killed_server_half_ends_the_run_with_words() {
    let mut half = ServerHalf::of(&["bench", "rpc"]);
    let client = half.client(&LONG).spawn().unwrap();
    half.says("a run begins");
    drop(half);
    let output = client.wait_with_output().unwrap();
    // If there are measurements, they are reported; if not, the failure is.
    assert!(matches!(output.status.code(), Some(1 | 4)), "{output:?}");
    let words = report(&output).to_string();
    assert!(
        words.contains("server half") && (words.contains("is gone") || words.contains("no answer")),
        "{words}"
    );
}

#[test]
fn a_conformance_suite_has_its_other_end_at_a_listener() {
    let mut half = ServerHalf::of(&["conform"]);
    let suite = |half: &ServerHalf| half.client(&["conform", "--filter", "rc/fence/*"]).output().unwrap();
    for _ in 0..2 {
        let output = suite(&half);
        let report = report(&output);
        let passed =
            report["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] == "pass").count();
        assert!(output.status.success() && passed > 1, "{report}");
    }
    // A connection that sends nothing occupies the other end for some time. The next client is notified, and is served
    // when that connection is closed.
    let silent = TcpStream::connect(&half.address).unwrap();
    half.says("a suite begins");
    half.says("a suite begins");
    half.says("a suite begins");
    let refused = suite(&half);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("one suite at a time"), "{refused:?}");
    drop(silent);
    half.says("refused");
    assert!((0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        suite(&half).status.success()
    }));
    // Invalid bytes end their own suite only.
    let mut garbage = TcpStream::connect(&half.address).unwrap();
    garbage.write_all(&[0xFF; 64]).unwrap();
    let _ = garbage.read_to_end(&mut Vec::new());
    assert!((0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        suite(&half).status.success()
    }));
    kill_process(Pid::from_child(&half.child), Signal::TERM).unwrap();
    assert!(half.child.wait().unwrap().success());
}

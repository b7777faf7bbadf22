//! Servers as those who keep them running see them: their log, their metrics, their configuration.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A server on ports of the system's choice; killed when dropped.
struct Server {
    child: Child,
    ready: Value,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::from(Command::new(env!("CARGO_BIN_EXE_farcall")).args(args))
    }

    fn from(command: &mut Command) -> Self {
        let command = command.arg("--json").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str(&line) else {
            let _ = child.kill();
            panic!("{line:?}: {:?}", child.wait_with_output());
        };
        Self { child, ready }
    }

    fn address(&self, front_end: &str) -> String {
        let at = &self.ready[front_end];
        at.as_str()
            .or_else(|| at[0].as_str())
            .unwrap_or_else(|| panic!("no {front_end}: {}", self.ready))
            .into()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it as systemd does: how it ended, and its log.
    fn stop(mut self) -> (ExitStatus, String) {
        self.signal(rustix::process::Signal::TERM);
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_logs_connections_refusals_and_its_drain_if_it_is_told_to() {
    let rpc = ["kv", "serve", "--rpc", "127.0.0.1:0", "--log", "info"];
    let server = Server::start(&rpc);
    let address = server.address("rpc");
    assert!(farcall(&["kv", "set", "a", "b", "--server", &format!("rpc:{address}")]).status.success());
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = stranger.read_to_end(&mut Vec::new());
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    for part in ["INFO farcall_rpc", "a client connected", "a connection ended", "NotThisProtocol", "drains"]
    {
        assert!(log.contains(part), "{part:?} is missing:\n{log}");
    }

    // As it is, a log has warnings alone.
    let server = Server::start(&rpc[..4]);
    let to = format!("rpc:{}", server.address("rpc"));
    assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
    assert_eq!(server.stop().1, "");
}

/// sd-daemon(3): the journal reads priorities before the text, and has the time itself.
#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let journal = std::env::temp_dir().join(format!("farcall-journal-{}", std::process::id()));
    let file = std::fs::File::create(&journal).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["--json", "--log", "info", "rpc", "serve", "--listen", "127.0.0.1:0"])
        .env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .unwrap();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::TERM)
        .unwrap();
    assert!(server.wait().unwrap().success());
    let log = std::fs::read_to_string(&journal).unwrap();
    std::fs::remove_file(&journal).unwrap();
    assert!(log.starts_with("<6>farcall_rpc::server") && log.contains("drains"), "{log:?}");
}

#[test]
fn metrics_are_told_over_http_with_a_histogram_of_calls() {
    let server = Server::start(&["kv", "serve", "--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let to = format!("rpc:{}", server.address("rpc"));
    let lines: String = (0..100).map(|number| format!("key{number}\tvalue\n")).collect();
    let mut load = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["kv", "load", "-", "--server", &to])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    load.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(load.wait().unwrap().success());
    let metrics = server.address("metrics");
    let answer = get(&metrics, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let value = |name: &str| {
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name}:\n{answer}"));
        line.trim().parse::<f64>().unwrap()
    };
    assert!(value("farcall_rpc_server_thread_calls_total{number=\"0\"}") >= 100.0);
    let (timed, all) = (
        value("farcall_rpc_handler_seconds_count{number=\"0\"}"),
        value("farcall_rpc_handler_seconds_bucket{number=\"0\",le=\"+Inf\"}"),
    );
    // One of eight.
    assert!(timed >= 12.0 && timed == all, "{timed} and {all}");
    assert!(value("farcall_rpc_handler_seconds_sum{number=\"0\"}") > 0.0);
    assert!(get(&metrics, "/other").starts_with("HTTP/1.1 404"));

    // A client that says nothing, or nothing that is HTTP, keeps nobody out.
    let silent = TcpStream::connect(&metrics).unwrap();
    TcpStream::connect(&metrics).unwrap().write_all(&[b'x'; 100_000]).unwrap_or(());
    assert!(get(&metrics, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    drop(silent);
    assert!(server.stop().0.success());
}

#[test]
fn without_a_process_stats_lists_all_and_with_watch_what_changes() {
    let server = Server::start(&["kv", "serve", "--rpc", "127.0.0.1:0"]);
    let pid = server.ready["pid"].as_u64().unwrap();
    let listed = || {
        let list: Value = serde_json::from_slice(&farcall(&["stats", "--json"]).stdout).unwrap();
        list.as_array().unwrap().iter().find(|process| process["pid"] == pid).cloned()
    };
    let found = listed().unwrap();
    assert!(found["command"].as_str().unwrap().contains("kv serve") && found["alive"] == true, "{found}");

    let mut watch = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["stats", &pid.to_string(), "--watch", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let to = format!("rpc:{}", server.address("rpc"));
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    loop {
        assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
        let seen: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let rates = seen["rates"].as_array().unwrap();
        if rates.iter().any(|rate| rate["counter"] == "calls" && rate["per_second"].as_f64() > Some(0.0)) {
            break;
        }
    }
    assert!(server.stop().0.success());
    let last: Value = serde_json::from_str(&lines.last().unwrap().unwrap()).unwrap();
    assert_eq!(last["alive"], false);
    assert!(watch.wait().unwrap().success());
    assert_eq!(listed(), None);
}

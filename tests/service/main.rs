//! Servers as their operators see them: log, metrics, configuration.

mod exposition;
mod watched;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A server on ports chosen by the system, which is killed when this is dropped.
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

    /// Ends the server as systemd does. Returns its exit status and its log.
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
fn logs_connections_refusals_and_drain_if_enabled() {
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

    // By default the log contains warnings only.
    let server = Server::start(&rpc[..4]);
    let to = format!("rpc:{}", server.address("rpc"));
    assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
    assert_eq!(server.stop().1, "");
}

/// sd-daemon(3): the journal reads a priority before the text, and adds the time itself.
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
fn serves_metrics_over_http_with_a_call_histogram() {
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
    // One of eight calls is timed.
    assert!(timed >= 12.0 && timed == all, "{timed} and {all}");
    assert!(value("farcall_rpc_handler_seconds_sum{number=\"0\"}") > 0.0);
    assert!(get(&metrics, "/other").starts_with("HTTP/1.1 404"));

    // A client that sends nothing, or no valid HTTP, does not block others.
    let silent = TcpStream::connect(&metrics).unwrap();
    TcpStream::connect(&metrics).unwrap().write_all(&[b'x'; 100_000]).unwrap_or(());
    assert!(get(&metrics, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    drop(silent);
    assert!(server.stop().0.success());
}

#[test]
fn lists_all_processes_and_watches_changes_without_a_pid() {
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

#[test]
fn the_example_dashboard_asks_for_metrics_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/grafana/farcall.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let server = Server::start(&[
        "kv",
        "serve",
        "--tcp",
        "127.0.0.1:0",
        "--rpc",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let metrics = get(&server.address("metrics"), "/metrics");
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut count = 0;
    for expression in targets.map(|target| target["expr"].as_str().unwrap()) {
        let names = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in names.filter(|name| name.starts_with("farcall_")) {
            assert!(metrics.contains(&format!("\n{name}{{")), "{name} of {expression}");
            count += 1;
        }
    }
    assert!(count > 10, "only {count}: has the form of the dashboard changed?");
}

/// The requests of memcached_exporter, and the keys of `stats` and `stats settings` without which it reports a
/// failure.
#[test]
fn exporters_of_memcached_get_what_they_ask() {
    let server = Server::start(&["kv", "serve", "--tcp", "127.0.0.1:0"]);
    let mut socket = BufReader::new(TcpStream::connect(server.address("tcp")).unwrap());
    let mut ask = |command: &str| -> Vec<(String, String)> {
        socket.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut pairs = Vec::new();
        loop {
            let mut line = String::new();
            socket.read_line(&mut line).unwrap();
            match line.trim_end().splitn(3, ' ').collect::<Vec<_>>()[..] {
                ["STAT", name, value] => pairs.push((name.to_owned(), value.to_owned())),
                ["END"] => return pairs,
                _ => panic!("{command}: {line:?}"),
            }
        }
    };
    assert!(ask("stats slabs").iter().any(|(name, _)| name == "active_slabs"));
    ask("stats items");
    for (command, names) in [
        (
            "stats",
            "uptime time cmd_set cas_misses cas_hits cas_badval get_hits get_misses bytes limit_maxbytes \
          curr_items total_items curr_connections total_connections evictions reclaimed",
        ),
        ("stats settings", "maxconns maxbytes"),
    ] {
        let pairs = ask(command);
        for name in names.split_whitespace() {
            let value = pairs.iter().find(|(found, _)| found == name).map(|(_, value)| value.parse::<f64>());
            assert!(matches!(value, Some(Ok(_))), "{command}: {name} is {value:?}");
        }
    }
}

/// A directory of a test, which is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farcall-service-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn options_come_from_a_file_and_the_command_line_wins() {
    let folder = Folder::new("options");
    let text = "tcp = ['127.0.0.1:0', '127.0.0.1:0']\nmemory-mib = 32\nvalue-max = 1000\nno-evict = true\n";
    let file = folder.write("kv.toml", text);
    let server = Server::start(&["kv", "serve", "--config", &file, "--memory-mib", "16"]);
    assert_eq!(server.ready["tcp"].as_array().unwrap().len(), 2, "{}", server.ready);
    let to = format!("tcp:{}", server.address("tcp"));
    let stats: Value =
        serde_json::from_slice(&farcall(&["kv", "stats", "--json", "--server", &to]).stdout).unwrap();
    assert_eq!(stats["limit_maxbytes"], 16 << 20, "{stats}");
    assert!(!farcall(&["kv", "set", "big", &"x".repeat(1001), "--server", &to]).status.success());

    for (text, part) in [
        ("\nmemory_mib = 1", "wrong.toml:2"),
        ("memory_mib = 1", "did you mean memory-mib?"),
        ("tcp = 7 7", "line 1"),
        ("partitions = 0", "0 is not in 1..=256"),
        ("tcp = ['nowhere']", "nowhere"),
    ] {
        let file = folder.write("wrong.toml", text);
        let refused = farcall(&["kv", "serve", "--config", &file]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains(part), "{text}: {said}");
    }
    let fifo = folder.0.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let large = folder.write("large.toml", &"#".repeat((1 << 20) + 1));
    for (path, part) in [
        ("/nonexistent.toml", "No such file"),
        (fifo.to_str().unwrap(), "a FIFO"),
        ("/dev/zero", "a device"),
        (&large, "more than 1048576 bytes"),
    ] {
        let refused = farcall(&["rpc", "serve", "--config", path]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{path}: {said}");
        assert!(said.contains(part) && said.contains(path), "{path}: {said}");
    }
}

#[test]
fn reopens_the_log_after_a_hang_up_and_keeps_serving() {
    let folder = Folder::new("reload");
    let file = folder.write("kv.toml", "rpc = '127.0.0.1:0'\nlog = 'warn'\n");
    let mut server = Server::start(&["kv", "serve", "--config", &file]);
    folder.write("kv.toml", "rpc = '127.0.0.1:0'\nlog = 'info'\nmemory-mib = 128\n");
    let mut log = BufReader::new(server.child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("reloaded ") {
        server.signal(rustix::process::Signal::HUP);
        said.clear();
        log.read_line(&mut said).unwrap();
        if said.contains("effective after a restart of the service") {
            assert!(said.contains("memory-mib"), "{said}");
        }
    }
    let to = format!("rpc:{}", server.address("rpc"));
    assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
    while !said.contains("a client connected") {
        said.clear();
        assert!(log.read_line(&mut said).unwrap() > 0, "the log ended");
    }
    folder.write("kv.toml", "log = 'loud'");
    server.signal(rustix::process::Signal::HUP);
    while !said.contains("is unchanged") {
        said.clear();
        assert!(log.read_line(&mut said).unwrap() > 0, "the log ended");
    }
    assert!(farcall(&["kv", "get", "a", "--server", &to]).status.success());
}

/// sd_notify(3).
#[test]
fn notifies_its_supervisor_when_ready_and_stopping() {
    let folder = Folder::new("notify");
    let socket = UnixDatagram::bind(folder.0.join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hear = || {
        let mut state = [0; 100];
        let len = socket.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..len]).into_owned()
    };
    for args in [&["kv", "serve", "--rpc", "127.0.0.1:0"], &["rpc", "serve", "--listen", "127.0.0.1:0"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
        let server = Server::from(command.args(args).env("NOTIFY_SOCKET", folder.0.join("notify")));
        assert_eq!(hear(), "READY=1");
        assert!(server.stop().0.success());
        assert_eq!(hear(), "STOPPING=1");
    }
}

/// sd_listen_fds(3): descriptors starting with 3, for the process with the named pid.
#[test]
fn sockets_that_were_opened_before_are_served() {
    let folder = Folder::new("sockets");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(folder.0.join("kv.sock")).unwrap();
    // Duplicated without close-on-exec; the shell moves the descriptor to its number.
    let keep = |socket: BorrowedFd<'_>| rustix::io::dup(socket).unwrap();
    let (tcp_fd, unix_fd) = (keep(tcp.as_fd()), keep(unix.as_fd()));
    let script = format!(
        "exec 3<&{} 4<&{}; LISTEN_PID=$$ LISTEN_FDS=$1 exec \"$0\" kv serve --json",
        tcp_fd.as_raw_fd(),
        unix_fd.as_raw_fd()
    );
    let run = |count: &str, more: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{script} {more}"), env!("CARGO_BIN_EXE_farcall"), count]);
        command
    };
    let server = Server::from(&mut run("2", ""));
    assert_eq!(server.address("tcp"), tcp.local_addr().unwrap().to_string());
    assert!(server.ready["rpc"].is_null(), "only what was opened is served: {}", server.ready);
    let path = folder.0.join("kv.sock").display().to_string();
    assert_eq!(server.address("unix"), path);
    assert!(
        farcall(&["kv", "set", "a", "b", "--server", &format!("tcp:{}", server.address("tcp"))])
            .status
            .success()
    );
    assert!(farcall(&["kv", "get", "a", "--server", &format!("unix:{path}")]).status.success());
    assert!(server.stop().0.success());
    assert!(folder.0.join("kv.sock").exists(), "it is not ours to remove");

    // An address that is specified as well is served once, through the existing socket.
    let address = tcp.local_addr().unwrap().to_string();
    let server = Server::from(&mut run("1", &format!("--tcp {address} --tcp 127.0.0.1:0")));
    assert_eq!(server.ready["tcp"].as_array().unwrap().len(), 2, "{}", server.ready);
    let to = format!("tcp:{address}");
    assert!(farcall(&["kv", "set", "a", "b", "--server", &to]).status.success());
    drop(server);

    for count in ["-1", "999", "many"] {
        let refused = run(count, "").output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    // Descriptor 5 is not open.
    let refused = run("3", "5<&-").output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("descriptor 5"), "{refused:?}");
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    let folder = Folder::new("man");
    let dir = folder.0.to_str().unwrap();
    assert!(farcall(&["man", dir]).status.success());
    for page in ["farcall", "farcall-kv-serve", "farcall-rpc-call", "farcall-stats", "farcall-verbs-run"] {
        let text = std::fs::read_to_string(folder.0.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH OPTIONS") && text.contains(".SH EXTRA"), "{page}: {text}");
    }
    assert!(!folder.0.join("farcall-__peer.1").exists(), "hidden commands have none");
    for shell in ["bash", "zsh", "fish"] {
        let script = farcall(&["completions", shell]);
        let text = String::from_utf8_lossy(&script.stdout).into_owned();
        assert!(script.status.success() && text.contains("memory-mib"), "{shell}");
    }
    let completed = Command::new("bash")
        .args(["-c", "source /dev/stdin; COMP_WORDS=(farcall kv ser); COMP_CWORD=2; _farcall farcall ser kv; echo ${COMPREPLY[@]}"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .and_then(|mut bash| {
            bash.stdin.take().unwrap().write_all(&farcall(&["completions", "bash"]).stdout)?;
            bash.wait_with_output()
        });
    assert_eq!(String::from_utf8_lossy(&completed.unwrap().stdout).trim(), "serve");
}

/// Options that were formerly ignored, or had an unexpected effect, are refused or work.
#[test]
fn what_would_surprise_silently_is_said_or_works() {
    let refused = |args: &[&str], part: &str| {
        let output = farcall(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    };
    // An RNIC for a server that uses none.
    refused(&["kv", "serve", "--tcp", "127.0.0.1:0", "--device", "mlx5_0"], "--rpc");
    refused(&["kv", "serve", "--tcp", "127.0.0.1:0", "--provider", "ibv"], "--rpc");
    refused(&["kv", "get", "a", "--device", "mlx5_0"], "--server rpc:");
    // One user instead of two.
    let user = rustix::process::geteuid().as_raw().to_string();
    refused(
        &["conform", "--sides", "users", "--other-user", &user],
        &format!("both ends would have user {user}"),
    );

    // Every selected case has a result.
    let told = farcall(&["conform", "-v", "--filter", "rc/write/*-length"]);
    let count =
        String::from_utf8_lossy(&told.stdout).lines().filter(|line| line.contains("rc/write/")).count();
    assert!(count > 0 && told.stderr.is_empty(), "{told:?}");
    let told = farcall(&["conform", "-v", "--json", "--filter", "rc/write/*-length"]);
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(report["cases"].as_array().unwrap().len(), count);

    let server = Server::start(&["rpc", "serve", "--listen", "127.0.0.1:0"]);
    let address = server.address("rpc");
    let call = |args: &[&str], input: &[u8]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["rpc", "call", "--server", &address])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    };
    assert_eq!(call(&[], b"from a pipe").stdout, b"from a pipe\n");
    assert_eq!(call(&["named"], b"from a pipe").stdout, b"named\n");
    assert_eq!(call(&[], &[b'x'; 100_000]).stdout.len(), 100_001);
    assert_eq!(call(&["--method", "3", "--number", "7"], b"").stdout, b"\n");
    assert_eq!(call(&["--method", "5", "--number", "9", "--number", "7"], b"").stdout, b"ZZZZZZZZZ\n");
    let wrong = call(&["--method", "3", "100"], b"");
    assert!(
        !wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("--number"),
        "{wrong:?}"
    );
}

/// Like `farcall kv serve & farcall kv set greeting hello`, even under load.
#[test]
fn a_service_that_starts_is_waited_for() {
    let port = |reserved: &TcpListener| reserved.local_addr().unwrap().to_string();
    for (serve, ask) in [
        (&["kv", "serve", "--tcp"][..], &["kv", "set", "a", "b", "--server"][..]),
        (&["kv", "serve", "--rpc"], &["kv", "set", "a", "b", "--server"]),
        (&["rpc", "serve", "--listen"], &["rpc", "call", "hello", "--server"]),
        (&["memory", "serve", "--size", "64M", "--listen"], &["memory", "status", "--nodes"]),
    ] {
        // On a loaded machine a second may pass before the server listens; the test then tries again.
        let is_answered = (0..20).any(|_| {
            let address = port(&TcpListener::bind("127.0.0.1:0").unwrap());
            let at = match (serve[0], serve[2]) {
                ("kv", option) => format!("{}:{address}", option.trim_start_matches('-')),
                _ => address.clone(),
            };
            let mut client = Command::new(env!("CARGO_BIN_EXE_farcall"))
                .args(ask)
                .arg(at)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            // The client starts first.
            std::thread::sleep(Duration::from_millis(100));
            let _server = Server::start(&[serve, &[&address]].concat());
            client.wait().unwrap().success()
        });
        assert!(is_answered, "{serve:?}");
    }
    let absent = farcall(&["kv", "get", "a", "--server", "unix:/nonexistent/kv.sock"]);
    assert_eq!(absent.status.code(), Some(4));
}

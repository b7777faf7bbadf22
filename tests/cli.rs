//! The binary as users and scripts run it: exit codes, JSON, errors with remedies, orderly ends.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn farcall_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the exit code. Prints the output of a failed command, which helps if the test fails.
fn code(output: &Output) -> i32 {
    if !output.status.success() {
        eprintln!("{output:?}");
    }
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

/// A `farcall kv serve` on a private socket, which is killed when this is dropped.
struct Server {
    child: Child,
    ready: Value,
}

impl Server {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, options: &[&str]) -> Self {
        let socket = std::env::temp_dir().join(format!("farcall-cli-{}-{name}.sock", std::process::id()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["--json", "kv", "serve", "--tcp", "127.0.0.1:0", "--unix"])
            .arg(&socket)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    fn rpc(&self) -> String {
        format!("rpc:{}", self.ready["rpc"].as_str().unwrap())
    }

    fn address(&self) -> String {
        format!("unix:{}", self.ready["unix"][0].as_str().unwrap())
    }

    fn tcp(&self) -> String {
        format!("tcp:{}", self.ready["tcp"][0].as_str().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.ready["unix"][0].as_str().unwrap().into()
    }

    fn terminate(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let commands: [&[&str]; 32] = [
        &["devices"],
        &["doctor"],
        &["bench", "verbs"],
        &["bench", "verbs", "send"],
        &["bench", "verbs", "qps"],
        &["bench", "verbs", "herd"],
        &["bench", "verbs", "limits"],
        &["stats"],
        &["tune"],
        &["rpc", "serve"],
        &["rpc", "call"],
        &["bench", "rpc"],
        &["bench", "remio"],
        &["memory", "serve"],
        &["memory", "status"],
        &["memory", "drain"],
        &["mount", "list"],
        &["bench", "page"],
        &["bench", "region"],
        &["conform"],
        &["bench", "grpc"],
        &["grpc", "kv"],
        &["figures", "list"],
        &["figures", "run"],
        &["figures", "report"],
        &["kv", "serve"],
        &["kv", "load"],
        &["kv", "get"],
        &["kv", "set"],
        &["kv", "del"],
        &["kv", "stats"],
        &["bench", "kv"],
    ];
    for command in commands {
        let output = farcall(&[command, &["--help"]].concat());
        assert_eq!(code(&output), 0, "{command:?}");
        let help = text(&output.stdout);
        assert!(help.contains("Examples:") && help.contains("--json"), "{command:?}:\n{help}");
    }
}

#[test]
fn groups_commands_by_purpose_in_the_help_text() {
    let help = text(&farcall(&["--help"]).stdout);
    let headings = ["Serve:", "Run programs:", "Inspect:", "Measure:", "Options:"];
    let places = headings.map(|heading| help.find(&format!("\n{heading}\n")));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in:\n{help}");
    assert!(help.contains("\n  bench        Measure"), "{help}");
}

#[test]
fn accepts_former_names_of_measurements() {
    let options = |command: &str| {
        let output = farcall(&[command.split(' ').collect(), vec!["--help"]].concat());
        assert_eq!(code(&output), 0, "{command}");
        let help = text(&output.stdout);
        help.split_once("\nOptions:\n").unwrap_or_else(|| panic!("{command}: {help}")).1.to_owned()
    };
    for (former, now) in [
        ("kv bench", "bench kv"),
        ("rpc bench", "bench rpc"),
        ("stream bench", "bench stream"),
        ("grpc bench", "bench grpc"),
        ("remio bench", "bench remio"),
        ("page bench", "bench page"),
        ("memory region-bench", "bench region"),
        ("perf", "bench verbs"),
        ("perf send", "bench verbs send"),
        ("mounts", "mount list"),
    ] {
        assert_eq!(options(former), options(now), "{former} differs from {now}");
    }
}

/// A directory may have the name of a subcommand. The mount is refused after its arguments were parsed.
#[test]
fn distinguishes_a_directory_to_mount_at_from_a_subcommand() {
    assert_eq!(code(&farcall(&["mount", "list"])), 0);
    let mount = farcall(&["mount", "./list", "--nodes", "127.0.0.1:1"]);
    assert!(text(&mount.stderr).contains("error: cannot store that many replicas"), "{mount:?}");
    for missing in [&["mount"][..], &["mount", "/mnt"], &["mount", "--nodes", "127.0.0.1:1"]] {
        assert_eq!(code(&farcall(missing)), 2, "{missing:?}");
    }
}

#[test]
fn values_go_in_and_out_through_both_front_ends() {
    let server = Server::start("values");
    let (unix, tcp) = (server.address(), server.tcp());
    assert_eq!(code(&farcall(&["kv", "set", "greeting", "hello", "--server", &unix])), 0);
    let got = farcall(&["kv", "get", "greeting", "--server", &tcp]);
    assert_eq!((code(&got), text(&got.stdout).as_str()), (0, "hello\n"));
    let absent = farcall(&["kv", "get", "nothing", "--json", "--server", &unix]);
    let json: Value = serde_json::from_slice(&absent.stdout).unwrap();
    assert_eq!((code(&absent), &json["found"]), (3, &Value::Bool(false)));
    let binary = [0u8, 255, 10, 13];
    assert_eq!(code(&farcall_with_input(&["kv", "set", "binary", "--server", &unix], &binary)), 0);
    assert_eq!(farcall(&["kv", "get", "binary", "--server", &unix]).stdout, [&binary[..], b"\n"].concat());
    assert_eq!(code(&farcall(&["kv", "del", "greeting", "binary", "--server", &unix])), 0);
    assert_eq!(code(&farcall(&["kv", "del", "greeting", "--server", &unix])), 3);
    let stats: Value =
        serde_json::from_slice(&farcall(&["kv", "stats", "--json", "--server", &unix]).stdout).unwrap();
    assert_eq!(stats["curr_items"], 0, "{stats}");
}

#[test]
fn files_are_loaded_and_bad_lines_are_named() {
    let server = Server::start("load");
    let unix = server.address();
    let tsv: String = (0..1000).map(|number| format!("key{number}\tvalue {number}\n")).collect();
    let loaded = farcall_with_input(&["kv", "load", "-", "--json", "--server", &unix], tsv.as_bytes());
    let json: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!((code(&loaded), &json["stored"]), (0, &1000.into()));
    assert_eq!(text(&farcall(&["kv", "get", "key777", "--server", &unix]).stdout), "value 777\n");

    let jsonl = b"{\"key\":\"a\",\"value\":\"b\"}\nnonsense\n{\"key\":\"c\",\"value\":[1]}\n";
    let loaded = farcall_with_input(&["kv", "load", "-", "--format", "jsonl", "--server", &unix], jsonl);
    assert_eq!(code(&loaded), 1);
    assert!(text(&loaded.stderr).contains("line 2"), "{loaded:?}");
    assert_eq!(text(&farcall(&["kv", "get", "c", "--server", &unix]).stdout), "[1]\n");
}

#[test]
fn every_kv_command_speaks_rpc_to_all_partitions() {
    let options = ["--rpc", "127.0.0.1:0", "--partitions", "3", "--value-max", "1000"];
    let server = Server::start_with("rpc", &options);
    let (rpc, unix) = (server.rpc(), server.address());
    let kv = |args: &[&str]| farcall(&[&["kv"], args, &["--server", &rpc]].concat());
    let kv_with_input = |args: &[&str], input: &[u8]| {
        farcall_with_input(&[&["kv"], args, &["--server", &rpc]].concat(), input)
    };
    assert_eq!(code(&kv(&["set", "greeting", "hello", "--ttl", "3600"])), 0);
    assert_eq!(text(&farcall(&["kv", "get", "greeting", "--server", &unix]).stdout), "hello\n");
    assert_eq!(text(&kv(&["get", "greeting"]).stdout), "hello\n");
    assert_eq!(code(&kv(&["get", "nothing"])), 3);
    assert_eq!(code(&kv(&["del", "greeting"])), 0);
    assert_eq!(code(&kv(&["del", "greeting"])), 3);

    // Keys of every partition, one key longer than allowed, one value too large, and one invalid line.
    let mut tsv: String = (0..1000).map(|number| format!("key{number}\tvalue {number}\n")).collect();
    tsv += &format!("{}\tx\nbig\t{}\nno tab\n", "k".repeat(251), "v".repeat(1001));
    let loaded = kv_with_input(&["load", "-", "--json"], tsv.as_bytes());
    let json: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!((&json["stored"], &json["bad_lines"], &json["refused"]), (&1000.into(), &2.into(), &1.into()));
    assert_eq!(code(&loaded), 1);
    let complaints = text(&loaded.stderr);
    for part in ["line 1001: the key has 251 bytes", "at most 1000 bytes", "line 1003: no tab"] {
        assert!(complaints.contains(part), "{part:?} missing in {complaints}");
    }
    for number in [0, 1, 2, 500, 999] {
        let got = farcall(&["kv", "get", &format!("key{number}"), "--server", &unix]);
        assert_eq!(text(&got.stdout), format!("value {number}\n"));
    }
    let stats: Value = serde_json::from_slice(&kv(&["stats", "--json"]).stdout).unwrap();
    assert_eq!((&stats["curr_items"], &stats["threads"]), (&1000.into(), &3.into()), "{stats}");

    let refused = kv(&["set", "big", &"v".repeat(1001)]);
    assert_eq!(code(&refused), 1);
    assert!(text(&refused.stderr).contains("at most 1000 bytes"), "{refused:?}");
    assert_eq!(server.terminate(), 0);
    let gone = farcall(&["kv", "get", "key1", "--server", &rpc]);
    assert_eq!(code(&gone), 4);
    assert!(text(&gone.stderr).contains("kv serve --rpc"), "{gone:?}");
}

#[test]
fn calls_under_every_preset_and_explains_refusals() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["--json", "rpc", "serve", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = ready["rpc"].as_str().unwrap();
    for preset in farcall_link::PRESETS.iter().map(|preset| preset.name) {
        let output = farcall(&["rpc", "call", "hello", "--server", address, "--preset", preset]);
        assert_eq!((code(&output), text(&output.stdout).as_str()), (0, "hello\n"), "{preset}: {output:?}");
    }
    // An echo service is not a store.
    let output = farcall(&["kv", "get", "x", "--server", &format!("rpc:{address}")]);
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(text(&output.stderr).contains("does not answer as a key-value service"), "{output:?}");
    let refused = farcall(&["rpc", "call", "x", "--method", "77", "--server", address]);
    assert_eq!(code(&refused), 1);
    assert!(text(&refused.stderr).contains("77"), "{refused:?}");
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert_eq!(code(&farcall(&["rpc", "call", "x", "--server", address])), 4);
}

#[test]
fn errors_say_what_where_why_and_what_to_do() {
    let output = farcall(&["kv", "get", "x", "--server", "unix:/nonexistent/socket"]);
    assert_eq!(code(&output), 4);
    let error = text(&output.stderr);
    for part in ["error: cannot reach", "where:", "unix:/nonexistent/socket", "why:", "remedy:", "kv serve"] {
        assert!(error.contains(part), "{part:?} missing in {error}");
    }
    assert_eq!(code(&farcall(&["kv", "get", "x", "--server", "nonsense"])), 2);
    assert_eq!(code(&farcall(&["kv", "serve", "--unix", "/nonexistent/socket"])), 1);
    assert_eq!(code(&farcall(&["stats", "4294967295"])), 3);
    let json: Value = serde_json::from_slice(&farcall(&["stats", "4294967295", "--json"]).stdout).unwrap();
    assert_eq!(json["error"]["exit"], 3);
}

#[test]
fn distinguishes_a_silent_server_from_an_absent_one() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = tcp.local_addr().unwrap().to_string();
    let socket = std::env::temp_dir().join(format!("farcall-cli-{}-silent.sock", std::process::id()));
    let _unix = UnixListener::bind(&socket).unwrap();
    let kv = [format!("tcp:{place}"), format!("rpc:{place}"), format!("unix:{}", socket.display())];
    let commands: [&[&str]; 5] =
        [&["get", "x"], &["set", "x", "y"], &["del", "x"], &["stats"], &["load", "-", "--format", "lines"]];
    for (command, server) in
        commands.iter().flat_map(|command| kv.iter().map(move |server| (command, server)))
    {
        is_told_to_be_silent(&[&["kv"], *command, &["--server", server]].concat(), b"word\n");
    }
    is_told_to_be_silent(&["rpc", "call", "x", "--server", &place], b"");
    std::fs::remove_file(socket).unwrap();
}

fn is_told_to_be_silent(command: &[&str], input: &[u8]) {
    let output = farcall_with_input(&[command, &["--timeout-ms", "200"]].concat(), input);
    assert_eq!(code(&output), 4, "{command:?}");
    let (error, server) = (text(&output.stderr), command.last().unwrap());
    for part in ["error: cannot", server, "no answer within 200ms", "stopped, overloaded", "--timeout-ms"] {
        assert!(error.contains(part), "{command:?}: {part:?} missing in {error}");
    }
}

/// Makes a listener with a backlog of one or two, which never accepts, and connections that fill it.
fn full_backlog(bound: impl AsFd, connect: impl Fn() -> Option<OwnedFd>) -> Vec<OwnedFd> {
    rustix::net::listen(bound, 0).unwrap();
    let taken: Vec<OwnedFd> = std::iter::from_fn(connect).take(16).collect();
    assert!(taken.len() < 16, "the backlog has no end");
    taken
}

#[test]
fn times_out_on_a_connection_that_is_not_accepted() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = tcp.local_addr().unwrap();
    let _tcp_connections = full_backlog(&tcp, || {
        TcpStream::connect_timeout(&place, Duration::from_secs(1)).ok().map(OwnedFd::from)
    });
    let socket = std::env::temp_dir().join(format!("farcall-cli-{}-full.sock", std::process::id()));
    let unix = UnixListener::bind(&socket).unwrap();
    let name = SocketAddrUnix::new(&socket).unwrap();
    let _unix_connections = full_backlog(&unix, || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::connect(&stream, &name).ok().map(|()| stream)
    });
    for server in [format!("tcp:{place}"), format!("unix:{}", socket.display())] {
        let output = farcall(&["kv", "get", "x", "--server", &server, "--timeout-ms", "200"]);
        assert_eq!(code(&output), 4, "{server}");
        let error = text(&output.stderr);
        for part in
            ["error: cannot reach", &server, "the connection was not accepted within 200ms", "--timeout-ms"]
        {
            assert!(error.contains(part), "{part:?} missing in {error}");
        }
    }
    std::fs::remove_file(socket).unwrap();
}

#[test]
fn a_server_ends_cleanly_on_sigterm_and_leaves_nothing() {
    let server = Server::start("term");
    let socket = server.socket();
    assert!(socket.exists());
    assert_eq!(server.terminate(), 0);
    assert!(!socket.exists());
}

#[test]
fn counters_of_a_killed_server_stay_readable() {
    let mut server = Server::start("killed");
    let unix = server.address();
    assert_eq!(code(&farcall(&["kv", "set", "a", "b", "--server", &unix])), 0);
    let pid = server.child.id().to_string();
    let read =
        || -> Value { serde_json::from_slice(&farcall(&["stats", &pid, "--all", "--json"]).stdout).unwrap() };
    let puts = |report: &Value| {
        let partition =
            report["blocks"].as_array().unwrap().iter().find(|block| block["label"] == "kv partition 0");
        partition.unwrap()["counters"]["puts"].clone()
    };
    // Counters are published ten times a second.
    let mut tries = 0;
    while puts(&read()) != 1 && tries < 100 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        tries += 1;
    }
    assert_eq!(read()["alive"], true);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let report = read();
    assert_eq!((&report["alive"], puts(&report)), (&Value::Bool(false), 1.into()));
    let _ = std::fs::remove_file(server.socket());
}

#[test]
fn reports_queue_pair_events_of_an_exited_process() {
    let mut perf = Command::new(env!("CARGO_BIN_EXE_farcall"));
    perf.args([
        "bench",
        "verbs",
        "write",
        "--size",
        "64",
        "--repetitions",
        "1",
        "--duration-ms",
        "5",
        "--json",
    ]);
    let mut perf = perf.stdout(Stdio::null()).spawn().unwrap();
    let pid = perf.id().to_string();
    assert!(perf.wait().unwrap().success());
    let report: Value = serde_json::from_slice(&farcall(&["stats", &pid, "--json"]).stdout).unwrap();
    let blocks = report["blocks"].as_array().unwrap().iter();
    let events: Vec<&Value> = blocks.flat_map(|block| block["records"].as_array().unwrap()).collect();
    assert!(events.iter().any(|event| event["event"] == "state" && event["about"] == "RTS"), "{report}");
    assert!(events.iter().all(|event| event["event"].is_string() && event["code"].is_u64()), "{report}");
    let text = String::from_utf8(farcall(&["stats", &pid]).stdout).unwrap();
    assert!(text.contains(" s: state RTS\n") && !text.contains(": event "), "{text}");
}

#[test]
fn what_tune_measures_is_taken_by_clients_and_nothing_else_is() {
    let folder = std::env::temp_dir().join(format!("farcall-cli-{}-tune", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name).display().to_string();
    let profile = file("profile.json");
    let short = ["--repetitions", "1", "--duration-ms", "1", "--json"];
    let tuned = farcall(&[&["tune", "--out", &profile], &short[..]].concat());
    assert_eq!(code(&tuned), 0);
    let report: Value = serde_json::from_slice(&tuned.stdout).unwrap();
    let tables = report["tables"].as_array().unwrap();
    let rows = |at: usize| tables[at]["rows"].as_array().unwrap().len();
    assert!(rows(0) >= 8 && rows(1) >= 6, "{report}");
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&profile).unwrap()).unwrap();
    assert_eq!((&written["farcall_profile"], &written["device"]), (&2.into(), &"softnic/softnic0".into()));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");

    let bench = |profile: &str| farcall(&[&["bench", "rpc", "--profile", profile], &short[..]].concat());
    let taken = bench(&profile);
    assert_eq!(code(&taken), 0);
    assert!(text(&taken.stdout).contains("by the profile given"), "{}", text(&taken.stdout));

    let changed = |name: &str, key: &str, value: Value| {
        let mut other = written.clone();
        other[key] = value;
        std::fs::write(file(name), other.to_string()).unwrap();
        file(name)
    };
    std::fs::write(file("garbage"), b"\xff\0 not json").unwrap();
    let refused = [
        (file("nothing"), "No such file"),
        (file("garbage"), "no profile"),
        (folder.display().to_string(), "cannot read the profile"),
        (changed("device", "device", "ibv/mlx5_0".into()), "ibv/mlx5_0"),
        (changed("format", "farcall_profile", 1.into()), "format"),
        (changed("peer", "peer", "another-host".into()), "another-host"),
        (changed("version", "version", "0.0.9".into()), "0.0.9"),
        (changed("sizes", "reads", Value::Array(Vec::new())), "no READ was measured"),
        (changed("time", "reply_ns", 0.into()), "0 ns"),
        (changed("more", "more", 1.into()), "no profile"),
    ];
    for (path, why) in refused {
        for command in [["bench", "rpc"], ["bench", "kv"]] {
            let output = farcall(&[&command[..], &["--profile", &path]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{path}: {said}");
            assert!(
                said.contains(why) && said.contains(&path) && said.contains("farcall tune"),
                "{path}: {said}"
            );
        }
    }
    let unwritable = farcall(&[&["tune", "--out", "/proc/no/profile.json"], &short[..]].concat());
    assert_eq!(code(&unwritable), 1);
    assert!(text(&unwritable.stderr).contains("--out FILE"), "{}", text(&unwritable.stderr));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_store_that_is_read_takes_no_option_that_it_cannot_follow() {
    let serve = ["kv", "serve", "--preset", "pilaf"];
    for (options, why) in [
        (&[][..], "--rpc"),
        (&["--rpc", "127.0.0.1:0", "--tcp", "127.0.0.1:0"], "--tcp"),
        (&["--rpc", "127.0.0.1:0", "--partitions", "2"], "--partitions"),
        (&["--rpc", "127.0.0.1:0", "--no-evict"], "--no-evict"),
        (&["--rpc", "127.0.0.1:0", "--memory-mib", "1"], "takes 4267264 bytes"),
    ] {
        let output = farcall(&[&serve[..], options].concat());
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn doctor_and_devices_speak_json() {
    let doctor: Value = serde_json::from_slice(&farcall(&["doctor", "--json"]).stdout).unwrap();
    assert!(doctor["checks"].as_array().unwrap().len() >= 15);
    let devices: Value = serde_json::from_slice(&farcall(&["devices", "--json"]).stdout).unwrap();
    assert_eq!(devices["devices"][0]["provider"], "softnic");
}

#[test]
fn a_short_perf_run_reports_figures_with_conditions() {
    let output = farcall(&[
        "bench",
        "verbs",
        "write",
        "--size",
        "64",
        "--repetitions",
        "1",
        "--duration-ms",
        "5",
        "--json",
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code(&output), 0, "{report}");
    assert!(report["conditions"]["kernel"].is_string() && report["conditions"]["provider"] == "softnic");
    assert!(report["conditions"]["measures"].is_string() && report["conditions"]["device"].is_string());
    assert!(report["notes"].to_string().contains("not a network"));
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.len() >= 4);
    for row in &rows[1..] {
        assert_eq!((row["operation"].as_str(), row["transport"].as_str()), (Some("WRITE"), Some("RC")));
        assert!(row["len_bytes"] == 64 && row["messages_per_second"]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn compares_many_queue_pairs_and_runs_benchmarks_of_a_paper() {
    let short = ["--repetitions", "1", "--duration-ms", "2", "--json"];
    let run = |args: &[&str]| -> Value {
        let output = farcall(&[&["bench", "verbs"], args, &short].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(code(&output), 0, "{report}");
        report
    };
    let qps = run(&["qps", "--qps", "40", "--window", "2"]);
    let rows = qps["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["qps"].as_u64().unwrap()).collect::<Vec<_>>(), [16, 40, 40]);
    let herd = run(&["herd", "--figure", "throughput,echo", "--size", "32", "--connections", "1"]);
    assert!(herd["tables"][0]["rows"][0]["rc_read_mops"]["median"].as_f64().unwrap() > 0.0, "{herd}");
    assert!(herd["notes"].to_string().contains("not measured here"), "{herd}");
}

#[test]
fn accepts_perf_tuning_and_suggests_the_nearest_valid_value() {
    let short = ["--repetitions", "1", "--duration-ms", "2", "--json"];
    let run = |args: &[&str]| farcall(&[&["bench", "verbs"], args, &short].concat());
    let tuned = run(&["send", "--figure", "rate", "--window", "8", "--chain", "4", "--events", "--qps", "3"]);
    let report: Value = serde_json::from_slice(&tuned.stdout).unwrap();
    assert_eq!(code(&tuned), 0, "{report}");
    assert!(
        report["tables"][0]["rows"][1]["what"].as_str().unwrap().contains("in chains of 4, 3 QPs"),
        "{report}"
    );
    for (args, nearest) in [
        (&["read", "--transport", "ud"][..], "READ over RC"),
        (&["write", "--transport", "ud"], "SEND over UD"),
        (&["send", "--window", "4", "--chain", "8"], "a chain of 4"),
        (&["write", "--srq"], "SEND with a shared receive queue"),
        (&["send", "--inline-max", "1000000"], "bytes"),
    ] {
        let refused = run(args);
        assert_eq!(code(&refused), 2, "{args:?}");
        let refusal: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert!(refusal["error"]["remedy"].as_str().unwrap().contains(nearest), "{args:?}: {refusal}");
    }
}

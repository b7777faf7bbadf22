//! `farcall memory`: memory nodes as users and scripts run them, with a program that stores pages there.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use farcall::memory::{ClientConfig, RemoteMemory};
use farcall::{Nic, SoftNic};
use serde_json::Value;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Timeout after which a test fails, even on a busy machine.
const LOST: Duration = Duration::from_secs(240);

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A `farcall memory serve`, which is killed when this is dropped.
struct Donor {
    child: Child,
    address: String,
}

impl Donor {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["--json", "memory", "serve", "--listen", "127.0.0.1:0", "--size", "16M", "--slab", "1M"])
            .args(["--lease-ms", "10000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((ready["slabs"].as_u64(), ready["slab_bytes"].as_u64()), (Some(16), Some(1 << 20)));
        Self { child, address: ready["rpc"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn reports_and_drains_nodes_while_a_program_keeps_its_pages() {
    let donors = [Donor::start(), Donor::start(), Donor::start()];
    let all = donors.iter().map(|donor| &*donor.address).collect::<Vec<_>>().join(",");
    let config = ClientConfig {
        name: "a program".into(),
        nodes: donors.iter().map(|donor| donor.address.clone()).collect(),
        size_bytes: 4 << 20,
        slab_bytes: 1 << 20,
        ..ClientConfig::default()
    };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| (at % 251) as u8).collect();
    memory.write(0, &bytes).unwrap();
    let status = json(&farcall(&["--json", "memory", "status", "--nodes", &all]));
    let nodes = status.as_array().unwrap();
    let held = |node: &Value| node["slabs"].as_u64().unwrap() - node["slabs_free"].as_u64().unwrap();
    assert_eq!((nodes.len(), nodes.iter().map(held).sum::<u64>()), (3, 8), "{status}");
    assert!(nodes.iter().any(|node| node["holders"][0]["name"] == "a program"));
    let drained = farcall(&["--json", "memory", "drain", "--nodes", &donors[0].address]);
    assert_eq!((drained.status.code(), json(&drained)["slabs"].as_u64()), (Some(0), Some(0)), "{drained:?}");
    let text = farcall(&["memory", "status", "--nodes", &donors[0].address]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("16 MiB free of 16 MiB (slabs of 1 MiB), draining"), "{text}");
    let mut found = vec![0; bytes.len()];
    memory.read(0, &mut found).unwrap();
    assert!(found == bytes);
    assert_eq!(memory.status().degraded, 0);
    let undone = farcall(&["memory", "drain", "--undo", "--nodes", &donors[0].address]);
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
}

#[test]
fn refuses_to_leave_one_replica_unless_forced() {
    let donors = [Donor::start(), Donor::start()];
    let config = ClientConfig {
        nodes: donors.iter().map(|donor| donor.address.clone()).collect(),
        size_bytes: 2 << 20,
        slab_bytes: 1 << 20,
        ..ClientConfig::default()
    };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    memory.write(0, &[7; 2 << 20]).unwrap();
    let begun = Instant::now();
    let status_says = |donor: &Donor, words: &str| {
        loop {
            let text = farcall(&["memory", "status", "--nodes", &donor.address]);
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            if text.contains(words) {
                return text;
            }
            assert!(begun.elapsed() < LOST, "{words} is not in {text}");
        }
    };
    status_says(&donors[0], "in sync: 2 slabs with 2 replicas");
    let refused = farcall(&["memory", "drain", "--nodes", &donors[0].address]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("farcall memory drain --force"), "{said}");
    let text = status_says(&donors[0], "in sync: 2 slabs with 2 replicas");
    assert!(!text.contains("draining"), "{text}");
    let forced = farcall(&["memory", "drain", "--force", "--nodes", &donors[0].address]);
    assert_eq!(forced.status.code(), Some(0), "{forced:?}");
    status_says(&donors[1], "degraded: 2 of 2 slabs with fewer than 2 replicas");
    let mut found = vec![0; 2 << 20];
    memory.read(0, &mut found).unwrap();
    assert!(found == [7; 2 << 20]);
}

#[test]
fn waits_until_clients_have_read_all_replicas() {
    let donors = [Donor::start(), Donor::start()];
    let addresses = donors.iter().map(|donor| &*donor.address).collect::<Vec<_>>().join(",");
    let none = farcall(&["memory", "scrub", "--nodes", &addresses]);
    assert!(none.status.success() && String::from_utf8_lossy(&none.stdout).contains("no client"), "{none:?}");
    let config = ClientConfig {
        nodes: donors.iter().map(|donor| donor.address.clone()).collect(),
        size_bytes: 2 << 20,
        slab_bytes: 1 << 20,
        scrub_pages_per_s: 0,
        ..ClientConfig::default()
    };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    memory.write(0, &[7; 2 << 20]).unwrap();
    let begun = Instant::now();
    let reports = |donor: &Donor| {
        let status = json(&farcall(&["--json", "memory", "status", "--nodes", &donor.address]));
        !status[0]["holders"][0]["redundancy"].is_null()
    };
    while !donors.iter().all(reports) {
        assert!(begun.elapsed() < LOST, "the client reports nothing");
    }
    assert_eq!(memory.status().counts.scrubbed, 0);
    let scrubbed = farcall(&["--json", "memory", "scrub", "--nodes", &addresses]);
    let clients = json(&scrubbed);
    let clients = clients.as_array().unwrap();
    assert_eq!(clients.len(), 2, "{scrubbed:?}");
    for client in clients {
        assert_eq!((client["pages"].as_u64(), client["lost"].as_u64()), (Some(512), Some(0)), "{client}");
    }
    assert!(memory.status().counts.scrubbed >= 512);
}

#[test]
fn a_donor_that_is_not_there_and_sizes_that_are_none_are_said() {
    let nobody = farcall(&["--json", "memory", "status", "--nodes", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(4), "{nobody:?}");
    assert!(json(&nobody)["error"]["remedy"].as_str().unwrap().contains("farcall memory serve"));
    let small = farcall(&["memory", "serve", "--listen", "127.0.0.1:0", "--size", "1M"]);
    let said = String::from_utf8_lossy(&small.stderr).into_owned();
    assert!(
        small.status.code() == Some(2) && said.contains("--size is 1 MiB, --slab is 64 MiB"),
        "{small:?}"
    );
    let wrong = farcall(&["memory", "serve", "--size", "4X"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("write a number with K, M, G or T"), "{wrong:?}");
}

#[test]
fn faults_of_a_region_are_measured_beside_the_bare_way() {
    let measured = farcall(&["--json", "bench", "region", "--faults", "256"]);
    assert!(measured.status.success(), "{measured:?}");
    let measured = json(&measured);
    let rows: Vec<_> =
        measured["rows"].as_array().unwrap().iter().map(|row| (&row["name"], &row["faults"])).collect();
    let faults = Value::from(256);
    assert_eq!(rows, [(&"bare".into(), &faults), (&"region".into(), &faults), (&"full".into(), &faults)]);
    let ratio = measured["rows"][1]["p50_to_bare"].as_f64();
    assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{measured}");
    assert!(measured["evicted"].as_u64() > Some(256), "pages of the full region go: {measured}");
}

/// Returns the locked memory of a process in KiB.
fn locked_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().trim_end_matches("kB").trim_end().parse().unwrap()
}

#[test]
fn locks_node_memory_if_requested() {
    assert_eq!(locked_kib(Donor::start().child.id()), 0);
    let serve =
        ["--json", "memory", "serve", "--lock", "--listen", "127.0.0.1:0", "--size", "4M", "--slab", "1M"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    let mut child = command.args(serve).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let locked = line.contains("serving").then(|| locked_kib(child.id()));
    child.kill().unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    // A user who may not lock memory gets an error with a remedy.
    assert!(locked.map_or(said.contains("ulimit -l"), |kib| kib > 0), "{line} {said}");
}

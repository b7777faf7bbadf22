//! Options with a number are tested with one, a few and many.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs a short `bench kv`. The quality of its figures is irrelevant; the tests check that they exist.
fn bench(options: &[&str]) -> Value {
    let short = ["--json", "bench", "kv", "--repetitions", "1", "--duration-ms", "10", "--records", "200"];
    let output = farcall(&[&short[..], options].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{options:?} printed no report: {output:?}"))
}

#[test]
fn survives_its_own_kills_with_one_few_and_many_connections() {
    for (connections, window) in [("1", "1"), ("4", "256"), ("32", "4")] {
        let report = bench(&["--connections", connections, "--window", window]);
        let problems = report["problems"].to_string();
        assert!(!problems.contains("killed"), "{connections} connections: {problems}");
        let crashes = report["tables"].as_array().unwrap().last().unwrap();
        let front_ends = crashes["rows"].as_array().unwrap().len();
        assert_eq!(front_ends, 2, "{connections} connections: {crashes}");
    }
}

#[test]
fn a_server_has_one_partition_a_few_or_many() {
    for partitions in ["1", "3", "64"] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["--json", "kv", "serve", "--tcp", "127.0.0.1:0", "--rpc", "127.0.0.1:0"])
            .args(["--partitions", partitions, "--memory-mib", "512"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut line)
            .unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let addresses = [
            format!("tcp:{}", ready["tcp"][0].as_str().unwrap()),
            format!("rpc:{}", ready["rpc"].as_str().unwrap()),
        ];
        for (at, address) in addresses.iter().enumerate() {
            for number in 0..8 {
                let key = format!("key{number}");
                if at == 0 {
                    let set = farcall(&["kv", "set", &key, "value", "--server", address]);
                    assert!(set.status.success(), "{partitions} partitions: {set:?}");
                }
                let got = farcall(&["kv", "get", &key, "--server", address]);
                assert_eq!(got.stdout, b"value\n", "{partitions} partitions: {got:?}");
            }
        }
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

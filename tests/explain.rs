//! `farcall explain` of a process with streams, and with queue pairs of each transport.
#![cfg(feature = "full")]

use farcall::rpc::{Call, Client, ClientOptions, Reply, Server};
use farcall::stream::{StreamListener, StreamOptions, StreamSocket};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// An address with the longest possible text.
const LONG_ADDRESS: &str = "2001:db8:1111:2222:3333:4444:5555:6666";
/// Faults: lost packets, and congestion marks as from a network with a queue.
const FAULTS: &str = "seed=3,loss=0.1,mark=1";
const APART: &str = "FARCALL_TEST_APART";

fn explain(args: &[&str]) -> Output {
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.args(["explain", &pid]).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

fn explained() -> Value {
    serde_json::from_slice(&explain(&["--json"]).stdout).unwrap()
}

/// Returns the queue pairs of a transport.
fn pairs(report: &Value, way: &str) -> Vec<Value> {
    let all = report["queue_pairs"].as_array().unwrap();
    all.iter().filter(|pair| pair["way"] == way).cloned().collect()
}

/// Returns the report on the end of a stream with this role.
fn told(role: &str) -> Value {
    let report = explained();
    let connections = report["connections"].as_array().unwrap();
    connections.iter().find(|connection| connection["role"] == role).unwrap().clone()
}

#[test]
fn reports_streams_with_transport_and_bytes() {
    let nothing = explain(&[]);
    assert_eq!(nothing.status.code(), Some(3), "{nothing:?}");
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    let client = thread::spawn(move || {
        let mut socket = StreamSocket::connect(&nic, address, StreamOptions::default()).unwrap();
        socket.write_all(&[7; 1_000]).unwrap();
        let mut answer = [0; 3];
        socket.read_exact(&mut answer).unwrap();
        // While this end sleeps in the read, the report contains all previous counts.
        assert_eq!(socket.read(&mut answer).unwrap(), 0);
    });
    let mut socket = listener.accept().unwrap();
    socket.read_exact(&mut [0; 1_000]).unwrap();
    socket.write_all(b"yes").unwrap();
    while told("connected")["received_bytes"] != 3 {
        thread::yield_now();
    }
    let connected = told("connected");
    assert_eq!(
        (&connected["kind"], &connected["way"], &connected["why"], &connected["sent_bytes"]),
        (&"stream".into(), &"one-sided WRITEs".into(), &"the device reaches the peer".into(), &1_000.into())
    );
    assert_eq!((&connected["peer"], &connected["open"]), (&address.to_string().into(), &true.into()));
    let by_memory = pairs(&explained(), "shared memory");
    let [one, other] = [0, 1].map(|at| &by_memory[at]);
    assert_eq!((&one["transport"], &one["state"], &one["open"]), (&"RC".into(), &"RTS".into(), &true.into()));
    assert_eq!((&one["peer_qp_num"], &other["peer_qp_num"]), (&other["qp_num"], &one["qp_num"]));
    assert!(one["source"].is_null() && one["path_mtu_bytes"].is_null(), "{one}");
    assert!(connected["ring_bytes"].as_u64().unwrap() > 0);
    drop(socket);
    client.join().unwrap();
    let accepted = told("accepted");
    assert_eq!((&accepted["sent_bytes"], &accepted["received_bytes"]), (&3.into(), &1_000.into()));
    assert_eq!((&accepted["local"], &accepted["open"]), (&address.to_string().into(), &false.into()));
    let text = String::from_utf8(explain(&[]).stdout).unwrap();
    assert!(text.contains(" (closed): one-sided WRITEs: the device reaches the peer"), "{text}");
    assert!(text.contains("1000 bytes sent, 3 received; slept "), "{text}");
}

/// Runs a test of this file again, in a network namespace of its own with an address. Returns whether this is that
/// run.
fn is_apart(test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let script = format!(
        "ip link set lo up && ip address add {LONG_ADDRESS}/64 dev lo nodad && exec \"$0\" --exact {test} --nocapture"
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .envs([(APART, "1"), ("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", FAULTS)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
    false
}

#[test]
fn reports_remote_queue_pairs_with_addresses_and_losses() {
    if !is_apart("reports_remote_queue_pairs_with_addresses_and_losses") {
        return;
    }
    let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let server = Server::builder().start(&nic(), move |_| echo).unwrap();
    let options = ClientOptions::preset("server-reply").unwrap().probe(false);
    let mut client = Client::connect(&nic(), server.address().to_string(), options).unwrap();
    let (long, mut answer) = (vec![7; 5_000], Vec::new());
    let has_suffered = |report: &Value| {
        let pairs = pairs(report, "RoCEv2");
        let sum = |name| pairs.iter().map(|pair| pair["counters"][name].as_u64().unwrap()).sum::<u64>();
        ["resent", "ack_timeouts", "packets_marked", "cnps_sent", "cnps_received"]
            .map(sum)
            .iter()
            .all(|sum| *sum > 0)
    };
    while !has_suffered(&explained()) {
        answer.clear();
        client.call(1, &long, &mut answer).unwrap();
        assert_eq!(answer, long);
    }
    let report = explained();
    assert!(pairs(&report, "shared memory").is_empty(), "{report}");
    let [one, other] = &pairs(&report, "RoCEv2")[..] else { panic!("{report}") };
    assert_eq!((&one["peer_qp_num"], &other["peer_qp_num"]), (&other["qp_num"], &one["qp_num"]));
    for pair in [one, other] {
        assert_eq!((&pair["source"], &pair["destination"]), (&LONG_ADDRESS.into(), &LONG_ADDRESS.into()));
        assert_eq!((&pair["transport"], &pair["state"]), (&"RC".into(), &"RTS".into()));
        assert_eq!((&pair["path_mtu_bytes"], &pair["open"]), (&4096.into(), &true.into()));
    }
    let text = String::from_utf8(explain(&[]).stdout).unwrap();
    let line = format!("RoCEv2 from {LONG_ADDRESS} to {LONG_ADDRESS}, qp 0x");
    assert!(text.contains(&line) && text.contains(" retransmissions, "), "{text}");
    // The queue pairs are closed with their connection.
    drop((client, server));
    let closed = pairs(&explained(), "RoCEv2");
    assert!(closed.iter().all(|pair| pair["open"] == false) && closed.len() == 2, "{closed:?}");
}

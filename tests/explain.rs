//! `farcall explain` of a process with streams.
#![cfg(feature = "full")]

use farcall::stream::{StreamListener, StreamOptions, StreamSocket};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

fn explain(args: &[&str]) -> Output {
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.args(["explain", &pid]).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

/// What is told of the end of a stream that has this role.
fn told(role: &str) -> Value {
    let report: Value = serde_json::from_slice(&explain(&["--json"]).stdout).unwrap();
    let connections = report["connections"].as_array().unwrap();
    connections.iter().find(|connection| connection["role"] == role).unwrap().clone()
}

#[test]
fn streams_are_told_with_their_way_and_bytes() {
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
        // It sleeps in this read: what was counted before is told then.
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

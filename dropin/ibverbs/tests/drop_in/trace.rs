//! FARCALL_TRACE: the trace of a program.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::roles::role;
use crate::support::{Folder, Running, has, pair_in, words};

/// Parses the lines of a trace as JSON.
fn parsed(trace: &str) -> Vec<Value> {
    trace.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn a_ping_pong_is_shown_call_by_call() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("trace-pingpong");
    let file = folder.path("%p.trace");
    let arguments = ["-g", "0", "-n", "3", "-r", "4", "-s", "2048", "-e"];
    pair_in(&folder, "ibv_rc_pingpong", &arguments, &[("FARCALL_TRACE", &file)]);
    let traces = folder.texts(".trace");
    let began = |trace: &&String| trace.starts_with("# process ");
    assert!(traces.iter().filter(began).count() >= 2, "each process its own file: {traces:?}");
    let whole = traces.iter().find(|trace| trace.contains("ibv_destroy_qp")).expect("a program to its end");
    for expected in [
        "ibv_get_device_list() = 0x",
        "ibv_open_device(device=\"softnic0\") = {context=",
        "access=LOCAL_WRITE) = {mr={lkey=0x",
        "ibv_create_qp(pd=0x",
        "attr={qp_type=RC, send_cq=2, recv_cq=2, cap={max_send_wr=1, max_recv_wr=4,",
        "attr_mask=STATE|ACCESS_FLAGS|PKEY_INDEX|PORT) = 0",
        "attr={qp_state=RTR, path_mtu=1024, dest_qp_num=0x",
        "attr={qp_state=RTS, sq_psn=0x",
        "wr=[{wr_id=0x1, sge=[{addr=0x",
        "wr=[{wr_id=0x2, opcode=SEND, flags=SIGNALED, sge=[{addr=0x",
        // One completion or two.
        "{wc=[{wr_id=0x",
        "ibv_poll_cq(cq=2, num_entries=2) = ",
        "status=SUCCESS, opcode=RECV, byte_len=2048, qp=0x",
        "ibv_ack_cq_events(cq=2, events=",
        " us>\n",
    ] {
        assert!(whole.contains(expected), "no {expected:?} in:\n{whole}");
    }
}

/// `-N` posts by `ibv_wr_complete`, and `-t` polls by `ibv_start_poll`; empty polls are counted.
#[test]
fn the_extended_interfaces_are_shown_too_as_json() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("trace-extended");
    let file = folder.path("%p.trace");
    let variables = [("FARCALL_TRACE", file.as_str()), ("FARCALL_TRACE_FORMAT", "json")];
    for extended in ["-N", "-t"] {
        let arguments = ["-g", "0", "-n", "3", "-r", "4", "-s", "64", extended];
        pair_in(&folder, "ibv_rc_pingpong", &arguments, &variables);
    }
    let lines: Vec<Value> = folder.texts(".trace").iter().flat_map(|trace| parsed(trace)).collect();
    let calls = |name: &str| lines.iter().filter(|line| line["call"] == name).collect::<Vec<_>>();
    let posted = calls("ibv_wr_complete");
    assert!(posted.iter().all(|line| line["args"]["wr"][0]["opcode"] == "SEND" && line["ret"] == 0));
    let started = calls("ibv_start_poll");
    assert!(started.iter().any(|line| line["out"]["wc"][0]["status"] == "SUCCESS"), "{started:?}");
    assert!(posted.len() >= 6 && !started.is_empty());
    let empty: u64 = lines.iter().filter_map(|line| line["out"]["empty_polls_before"].as_u64()).sum();
    assert!(empty > 0, "the client polls before its server answers");
    assert!(lines.iter().all(|line| line["ret"] != 0 || line["call"] != "ibv_poll_cq"));
}

/// Lines of threads do not mix, none is lost, and each thread's lines keep their order.
#[test]
fn threads_share_a_trace() {
    const ROUNDS: usize = 50;
    let folder = Folder::new("trace-threads");
    let file = folder.path("trace");
    let mut command = role(&folder, "threads_register_memory", &ROUNDS.to_string());
    command.env("FARCALL_TRACE", &file).env("FARCALL_TRACE_FORMAT", "json");
    let output = Running::start(command).finish();
    assert!(output.status.success(), "{}", words(&output));
    let mut threads: BTreeMap<u64, Vec<(f64, String)>> = BTreeMap::new();
    for line in parsed(&std::fs::read_to_string(&file).unwrap()).into_iter().skip(1) {
        let call = line["call"].as_str().unwrap().to_owned();
        threads.entry(line["tid"].as_u64().unwrap()).or_default().push((line["t"].as_f64().unwrap(), call));
    }
    let busy: Vec<_> =
        threads.values().filter(|calls| calls.iter().any(|(_, call)| call == "ibv_dereg_mr")).collect();
    assert_eq!(busy.len(), 4);
    for calls in busy {
        assert!(calls.is_sorted_by(|one, next| one.0 <= next.0));
        let of_memory: Vec<&str> =
            calls.iter().map(|(_, call)| call.as_str()).filter(|call| call.contains("reg_mr")).collect();
        assert_eq!(of_memory, ["ibv_reg_mr", "ibv_dereg_mr"].repeat(ROUNDS));
    }
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "what a program does is its owner's business");
}

#[test]
fn a_program_that_aborts_has_left_every_line() {
    let folder = Folder::new("trace-abort");
    let mut command = role(&folder, "aborts", "");
    command.env("FARCALL_TRACE", "stderr");
    let output = Running::start(command).finish();
    assert!(!output.status.success());
    assert!(words(&output).contains("ibv_alloc_pd(context="), "{}", words(&output));
}

#[test]
fn reports_an_unwritable_trace_once_and_continues() {
    let folder = Folder::new("trace-refused");
    let mut command = role(&folder, "threads_register_memory", "1");
    command.env("FARCALL_TRACE", folder.path("libibverbs.so.1"));
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("links are not followed").count(), 1, "{said}");
}

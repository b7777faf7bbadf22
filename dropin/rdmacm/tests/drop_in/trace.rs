//! FARCALL_TRACE: the trace of the connection manager.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::meeting::{compile, folder, listening_at, meet};
use crate::support::{Folder, Running, free_port, has, words};

/// Returns the only trace in the directory that contains `what`.
fn trace_with(folder: &Folder, what: &str) -> String {
    let mut found = folder.texts(".trace").into_iter().filter(|trace| trace.contains(what));
    found.next().unwrap_or_else(|| panic!("no trace has {what:?}"))
}

#[test]
fn a_connection_is_shown_call_by_call_and_event_by_event() {
    if !has("rping", "rdmacm-utils") {
        return;
    }
    let folder = folder("trace");
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let end = |role: &str| {
        let mut command = folder.program("rping");
        command.args([role, "-C", "2", "-p", &port, "-a", "127.0.0.1"]);
        command.env("FARCALL_TRACE", folder.path("%p.trace"));
        command
    };
    meet(end("-s"), end("-c"), &listening_at("tcp", &address));
    // Whether the last event is still received, and whether a process sleeps, depends on timing.
    let both = [
        "rdma_create_event_channel() = {channel=",
        ", ps=TCP) = 0 {id=0x",
        ", attr={qp_type=RC, send_cq=",
        ", cap={max_send_wr=16,",
        ") = 0 {id={qp=0x",
        " = 0 {event={event=ESTABLISHED, id=0x",
        "rdma_ack_cm_event(event={event=ESTABLISHED, id=0x",
        "ibv_post_send(qp=0x",
        "rdma_disconnect(id=0x",
        "rdma_destroy_event_channel(channel=",
    ];
    let bound = format!("addr={address}) = 0 {{id={{src_addr={address}}}}} <");
    let of_server =
        [&bound, "rdma_listen(id=0x", "event=CONNECT_REQUEST, id=0x", ", listen_id=0x", "rdma_accept("];
    let resolved = format!("src_addr=NULL, dst_addr={address}, timeout_ms=2000) = 0 <");
    let of_client = [
        &resolved,
        "{event={event=ADDR_RESOLVED, id=0x",
        "{event={event=ROUTE_RESOLVED, id=0x",
        "param={responder_resources=1, initiator_depth=1, flow_control=0, retry_count=7, rnr_retry_count=7, srq=0,",
    ];
    for (own, expected) in [("rdma_accept(", &of_server[..]), ("rdma_connect(", &of_client[..])] {
        let trace = trace_with(&folder, own);
        for expected in both.iter().chain(expected) {
            assert!(trace.contains(expected), "no {expected:?} in:\n{trace}");
        }
        // Calls of the connection manager on behalf of the program do not count as the program's calls.
        assert!(!trace.contains("ibv_create_qp") && !trace.contains("ibv_modify_qp"), "{trace}");
        assert_eq!(trace.matches("# process ").count(), 1, "one trace for both libraries: {trace}");
        in_order(&trace);
    }
}

/// Times have the same origin in both libraries: no call of a thread begins before the previous one.
fn in_order(trace: &str) {
    let mut last: BTreeMap<&str, f64> = BTreeMap::new();
    for line in trace.lines().skip(1).filter(|line| !line.contains(" -- ")) {
        let mut words = line.split_whitespace();
        let (at, thread) = (words.next().unwrap().parse().unwrap(), words.next().unwrap());
        let before = last.insert(thread, at);
        assert!(before.is_none_or(|before| before <= at), "{line} in:\n{trace}");
    }
}

#[test]
fn refusals_and_errors_are_shown_by_name_as_json() {
    let folder = folder("trace-json");
    let Some(program) = compile("ends.c", &folder) else { return };
    for case in ["refused", "private_data", "datagrams", "sync", "errors"] {
        let mut command = folder.program(&program);
        command.args([case, &free_port()]);
        command.env("FARCALL_TRACE", folder.path("%p.trace")).env("FARCALL_TRACE_FORMAT", "json");
        let output = Running::start(command).finish();
        assert!(output.status.success(), "{case}: {}", words(&output));
    }
    let traces = folder.texts(".trace");
    let lines: Vec<Value> = traces
        .iter()
        .flat_map(|trace| trace.lines())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let events = |name: &str| {
        let of = |line: &Value| Some(line["out"]["event"].clone()).filter(|event| event["event"] == name);
        lines.iter().filter_map(of).collect::<Vec<_>>()
    };
    let rejected = events("REJECTED");
    assert!(rejected.iter().any(|event| event["status"] == "CONSUMER_REJECT"), "{rejected:?}");
    let established = events("ESTABLISHED");
    assert!(established.iter().any(|event| event["conn"]["private_data"].is_string()), "{established:?}");
    assert!(established.iter().any(|event| event["ud"]["qkey"] == "0x1234567"), "{established:?}");
    assert!(!events("DISCONNECTED").is_empty());
    let failed = lines.iter().filter(|line| line["ret"] == -1 && line["errno"].is_string());
    assert!(failed.count() > 0);
    let reasons: Vec<&str> = lines.iter().filter_map(|line| line["about"]["why"].as_str()).collect();
    let of_second_resolve =
        |why: &&str| why.contains("AddressResolved") && why.contains("needs one that is Bound");
    assert!(reasons.iter().any(of_second_resolve), "{reasons:?}");
    let names: Vec<&str> = lines.iter().filter_map(|line| line["errno"].as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with('E')), "errors without a name: {names:?}");
}

#[test]
fn reports_an_unwritable_trace_once_for_both_libraries() {
    if !has("rping", "rdmacm-utils") {
        return;
    }
    let folder = folder("trace-refused");
    let mut command = folder.program("rping");
    // There is no listener.
    command.args(["-c", "-C", "1", "-a", "127.0.0.1", "-p", &free_port()]);
    command.env("FARCALL_TRACE", folder.path("librdmacm.so.1"));
    let said = words(&Running::start(command).finish());
    assert_eq!(said.matches("links are not followed").count(), 1, "{said}");
}

//! Failing calls write their reason to the trace.

use crate::meeting::{compile, connection_manager, folder};
use crate::support::{Running, defined, words};

/// Calls that cannot fail, by their types or by their function.
const NEVER_FAIL: [&str; 12] = [
    "rdma_destroy_event_channel",
    "rdma_event_str",
    "rdma_destroy_id",
    "rdma_destroy_qp",
    "rdma_destroy_srq",
    "rdma_destroy_ep",
    "rdma_free_devices",
    "rdma_freeaddrinfo",
    "rdma_get_src_port",
    "rdma_get_dst_port",
    // Functions of later releases than the headers that this is compiled with; refused like `rdma_join_multicast`.
    "rdma_resolve_addrinfo rdma_query_addrinfo",
    "rdma_write_cm_event",
];

#[test]
fn every_failure_has_its_reason_in_the_trace() {
    let folder = folder("refusals");
    let Some(program) = compile("refusals.c", &folder) else { return };
    let mut command = folder.program(&program);
    command.env("FARCALL_TRACE", folder.path("trace"));
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success() && said.contains("done"), "{said}");

    let trace = folder.texts("trace").concat();
    let lines: Vec<&str> = trace.lines().collect();
    let mut failed = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((before, result)) = line.split_once(") = ") else { continue };
        let name =
            before.split_once('(').and_then(|(name, _)| name.split_whitespace().last()).unwrap_or_default();
        let has_failed = result.starts_with("-1") || result.starts_with("NULL") || name == "rdma_getaddrinfo";
        if has_failed {
            assert!(lines[at - 1].contains("-- refused {why="), "no reason before {line} in:\n{trace}");
            failed.push(name);
        }
    }
    for symbol in defined(&connection_manager()) {
        let name = symbol.split('@').next().unwrap_or_default();
        let can_fail = name.starts_with("rdma_") && !NEVER_FAIL.iter().any(|never| never.contains(name));
        assert!(!can_fail || failed.contains(&name), "{name} did not fail in:\n{trace}");
    }
}

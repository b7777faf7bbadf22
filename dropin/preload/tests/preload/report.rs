//! Reports of connections that have ended.

use farcall_stats::read_pid;

use crate::support::{Running, TestDirectory, compile, program, reasons};

#[test]
fn reports_bytes_by_tcp_and_refused_connections() {
    let directory = TestDirectory::new("report");
    let Some(path) = compile(&directory, "report") else { return };
    let mut command = program(&path, true);
    command.env("FARCALL_RUN_REPORT", "1");
    let mut running = Running::start(command);
    let pid = running.pid();
    let (text, status) = running.finish();
    assert!(status.success(), "{text}");
    // Other processes may have replaced it in the statistics.
    let Ok(report) = read_pid(pid) else { return };
    let bytes = |end: &str, names: [&str; 2]| {
        let blocks = report.blocks.iter().filter(|block| block.label.ends_with(end));
        let counters = blocks.flat_map(|block| &block.counters);
        counters.filter(|(name, _)| names.contains(&name.as_str())).map(|(_, bytes)| bytes).sum::<u64>()
    };
    for (end, sent, received) in [(" connected", 5, 3), (" accepted", 3, 5)] {
        assert_eq!(bytes(end, ["sent_bytes", "tcp_sent_bytes"]), sent, "{report:?}");
        assert_eq!(bytes(end, ["received_bytes", "tcp_received_bytes"]), received, "{report:?}");
    }
    let why = reasons(pid);
    assert!(why.contains(&"no connection was established"), "{why:?}");
    assert!(!why.contains(&"shut down"), "{why:?}");
}

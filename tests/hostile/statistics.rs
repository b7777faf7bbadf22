//! Counters in shared memory: no modification of that memory ends the counting or the reading processes.

use std::fs::{self, OpenOptions};
use std::process::{Command, Output};

use serde_json::Value;

use crate::server::{Server, binary, farcall};

fn counters(server: &Server) -> Output {
    farcall(&["stats", &server.pid().to_string(), "--json"])
}

/// Truncates every file that the server has open or mapped, as far as its own user may. Returns the number of files.
fn cut_all_files(server: &Server) -> usize {
    let of_process = format!("/proc/{}", server.pid());
    let maps = fs::read_to_string(format!("{of_process}/maps")).unwrap();
    let shared = maps.lines().filter(|line| line.contains("rw-s"));
    let mut files: Vec<String> =
        shared.filter_map(|line| line.split_whitespace().nth(5)).map(Into::into).collect();
    for entry in fs::read_dir(format!("{of_process}/fd")).unwrap().flatten() {
        files.push(entry.path().to_string_lossy().into_owned());
    }
    for file in &files {
        let is_file = fs::metadata(file).is_ok_and(|meta| meta.is_file());
        if is_file && let Ok(file) = OpenOptions::new().write(true).open(file) {
            let _ = file.set_len(0);
        }
    }
    files.len()
}

#[test]
fn survives_truncation_of_its_shared_files() {
    let server = Server::start("cut", &[]);
    server.assert_serves();
    assert!(cut_all_files(&server) > 3, "nothing found to cut");
    for _ in 0..3 {
        // Counters are published at most ten times a second.
        std::thread::sleep(std::time::Duration::from_millis(150));
        server.assert_serves();
    }
    let shown = counters(&server);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(report["alive"], true, "{report}");
}

/// Removes the segments that the server created, as `ipcrm` does.
fn remove_segments(server: &Server) -> usize {
    let list = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let fields = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_server = fields.filter(|fields| fields[4] == server.pid().to_string());
    let removed = of_server.map(|fields| {
        // SAFETY: IPC_RMID ignores the pointer, which is null, so no memory is accessed.
        let result =
            unsafe { libc::shmctl(fields[1].parse().unwrap(), libc::IPC_RMID, std::ptr::null_mut()) };
        assert_eq!(result, 0);
    });
    removed.count()
}

#[test]
fn keeps_serving_after_its_counters_are_removed() {
    let server = Server::start("removed", &[]);
    server.assert_serves();
    assert_eq!(remove_segments(&server), 1);
    std::thread::sleep(std::time::Duration::from_millis(150));
    server.assert_serves();
    assert_eq!(counters(&server).status.code(), Some(3));
}

/// Runs as root, or where any user may create a mount namespace.
#[test]
fn serves_with_a_full_dev_shm_and_shows_counters() {
    let full = "mount -t tmpfs -o size=64k full /dev/shm && \
                { cat /dev/zero >/dev/shm/all 2>/dev/null; exec \"$@\"; }";
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", full, "sh"];
    let server = Server::start_by(&words, "full-dev-shm", &[]);
    server.assert_serves();
    let shown = counters(&server);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
}

/// Another user can create as many segments as the machine supports.
#[test]
fn without_a_segment_a_program_works_uncounted_and_says_so_once() {
    let none = "echo 0 >/proc/sys/kernel/shmmni && exec \"$@\"";
    let words = ["unshare", "--user", "--map-root-user", "--ipc", "sh", "-c", none, "sh"];
    let server = Server::start_by(&words, "no-segment", &[]);
    server.assert_serves();
    assert_eq!(counters(&server).status.code(), Some(3));
    let address = format!("rpc:{}", server.place("rpc"));
    let mut client = Command::new(words[0]);
    let client = client.args(&words[1..]).arg(binary()).args(["kv", "get", "none", "--server", &address]);
    let client = client.output().unwrap();
    let warning = String::from_utf8_lossy(&client.stderr);
    assert_eq!(client.status.code(), Some(3), "{client:?}");
    assert_eq!(warning.matches("no statistics").count(), 1, "{warning}");
}

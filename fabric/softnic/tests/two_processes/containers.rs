//! Containers: processes in different user, pid, ipc, mount and network namespaces that share a socket directory.

use std::path::Path;
use std::process::Command;

use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};

const UNSHARE: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child=SIGKILL",
    "--ipc",
    "--uts",
    "--net",
    "--mount",
    "--mount-proc",
];

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    match role.as_str() {
        "outside" => outside(&mut line, args[0] == 1),
        "inside" => inside(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

/// The first process of its pid namespace, with allocated and with registered heap memory.
fn inside(line: &mut Line) {
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    let mut heap = vec![0_u64; 1024];
    // SAFETY: the heap memory outlives its region.
    let mr = unsafe { end.pd.reg_mr(heap.as_mut_ptr().cast(), 8192, ALL) }.unwrap();
    end.recv(1, &[end.sge(0, 100_000)]);
    line.say([std::process::id().into(), mr.addr() as u64, mr.rkey().into(), 0]);
    let wc = end.wait();
    assert!(wc.status == WcStatus::SUCCESS && end.get(0, 100_000) == bytes(100_000, 4));
    line.say([2, 0, 0, 0]);
    line.hear();
}

/// Starts the process inside, performs all operations, and observes its exit.
fn outside(line: &mut Line, kill: bool) {
    let mut other = start_under(UNSHARE, "inside", &[], &[]);
    let (mut end, to) = connect(&mut other.line, QpCap::default()).unwrap();
    let [pid, addr, key, _] = other.line.hear().unwrap();
    assert_eq!(pid, 1, "the other is not in a pid namespace of its own");
    for (addr, key) in [(to.addr + 200_000, to.rkey), (addr, key as u32)] {
        end.put(0, &bytes(8192, 3));
        let (from, back) = ([end.sge(0, 8192)], [end.sge(10_000, 8192)]);
        end.send(&[
            SendWr::write(1, &from, addr, key),
            SendWr::read(2, &back, addr, key).with_flags(SIGNALED),
        ]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        assert!(end.get(10_000, 8192) == bytes(8192, 3));
    }
    end.put(0, &bytes(100_000, 4));
    let from = [end.sge(0, 100_000)];
    end.send(&[SendWr::send(3, &from).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]));
    // No receive is posted, so the request waits until the other process exits.
    end.send(&[SendWr::send(4, &from)]);
    if kill {
        other.kill();
    } else {
        other.line.say([0; 4]);
    }
    assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
    line.say([1, 0, 0, 0]);
}

#[test]
fn connects_containers_by_a_directory_and_detects_their_exit() {
    let tried = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").output();
    match tried {
        Ok(output) if output.status.success() => {}
        Ok(output) => return println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => return println!("skipped: no unshare: {error}"),
    }
    let directory = std::env::temp_dir().join(format!("farcall-containers-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for kill in [true, false] {
        let environment: [(&str, &Path); 1] = [("FARCALL_SOCKET_DIR", &directory)];
        let mut other = start_with("outside", &[kill.into()], &environment);
        assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

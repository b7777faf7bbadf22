//! Mounts of a volume while its nodes, workers and other mounts stop and start. Needs root, /dev/fuse and Linux 6.9.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "support/mounted.rs"]
mod mounted;
use mounted::{LOST, Process, farcall};
#[path = "support/mounted_volumes.rs"]
mod mounted_volumes;
use mounted_volumes::{VolumeMount, VolumeNodes, sync};

const LEN: usize = 300_000;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LOST, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the program's listing of a mount.
fn listed(mount: &VolumeMount) -> Value {
    let output = farcall().args(["--json", "mount", "list"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let dir = mount.dir.to_str().unwrap();
    all.into_iter().find(|listed| listed["mounted"] == *dir).unwrap_or_default()
}

fn waits_for(mount: &VolumeMount) -> String {
    listed(mount)["waits_for"].as_str().unwrap_or_default().to_owned()
}

/// Returns the line of `farcall memory status` about a mount. No node replies.
fn line_of_status(mount: &VolumeMount) -> String {
    let no_node = "127.0.0.1:1";
    let output = farcall().args(["memory", "status", "--nodes", no_node]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let dir = mount.dir.to_str().unwrap();
    text.lines().find(|line| line.contains(dir)).unwrap_or_default().to_owned()
}

/// Starts a separate program for operations on a waiting mount: this process must have no file open there.
fn program(script: &str, at: &Path) -> Child {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Waits for the line that a program prints when it has opened its file.
fn ready(program: &mut Child) {
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
}

fn is_over(program: &mut Child) -> bool {
    program.try_wait().unwrap().is_some()
}

#[test]
fn mounts_what_is_left_of_a_volume_only_to_be_read() {
    let Some(mut nodes) = VolumeNodes::new("incomplete") else { return };
    let one_replica = ["--replicas", "1"];
    let first = nodes.mount_with("first", &one_replica);
    let name = |number: u8| format!("file {number}");
    for number in 0..8 {
        fs::write(first.dir.join(name(number)), vec![number; 3 << 20]).unwrap();
    }
    sync(&first.dir);
    // The node is restarted, empty, and gets its part of the volume again.
    nodes.restart(1);
    until("the node has its part again", || {
        nodes.memory("status", &[])[1]["volumes"][0]["is_mounted"] == true
    });
    first.end();
    let refused = nodes.try_mount_with("refused", &one_replica).err().unwrap();
    assert!(refused.contains("incomplete") && refused.contains("--read-only"), "{refused}");
    let read_only = nodes.mount_with("left", &[&one_replica[..], &["--read-only"]].concat());
    assert_eq!(read_only.mount.ready["read_only"], true);
    let mut counts = [0, 0];
    for number in 0..8 {
        match fs::read(read_only.dir.join(name(number))) {
            Ok(bytes) => {
                assert!(bytes == vec![number; 3 << 20]);
                counts[0] += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                counts[1] += 1;
            }
        }
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    let refused = fs::write(read_only.dir.join("new"), "bytes").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    read_only.end();
}

#[test]
fn believes_a_survivor_that_the_command_line_names_once() {
    let Some(mut nodes) = VolumeNodes::new("survivor") else { return };
    let mut first = nodes.mount("first");
    fs::write(first.dir.join("file"), [1; LEN]).unwrap();
    sync(&first.dir);
    // The mount and a node end together, so it is unknown whether the other node is stale.
    nodes.nodes[1].signal(Signal::STOP);
    first.kill();
    nodes.nodes[1].signal(Signal::KILL);
    nodes.nodes[1].child.wait().unwrap();
    let survivor = nodes.addresses.split(',').next().unwrap().to_owned();
    let refused = nodes.try_mount("refused").err().unwrap();
    assert!(refused.contains("1 of its 2 nodes answer") && refused.contains("--survivor"), "{refused}");
    let other = nodes.try_mount_with("other", &["--survivor", "127.0.0.1:1"]).err().unwrap();
    assert!(other.contains("is not one of the memory nodes"), "{other}");
    let mount = nodes.mount_with("second", &["--survivor", &survivor]);
    assert!(fs::read(mount.dir.join("file")).unwrap() == [1; LEN]);
    // A later process of the mount must not trust data that others would not.
    let begun = epoch(&nodes);
    kill_process(mount.mount.worker().unwrap(), Signal::KILL).unwrap();
    fs::write(mount.dir.join("file"), [2; LEN]).unwrap();
    let next = epoch(&nodes);
    assert!((1..1_000).contains(&(next - begun)), "{begun} {next}");
    mount.end();
}

/// Returns the epoch of the volume at its first node.
fn epoch(nodes: &VolumeNodes) -> u64 {
    let address = nodes.addresses.split(',').next().unwrap();
    let output = farcall().args(["--json", "memory", "status", "--nodes", address]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    status[0]["volumes"][0]["epoch"].as_u64().unwrap()
}

#[test]
fn waits_with_its_programs_while_no_node_answers() {
    let Some(nodes) = VolumeNodes::new("waits") else { return };
    let mounted = nodes.mount("0");
    let path = mounted.dir.join("file");
    fs::write(&path, [1; LEN]).unwrap();
    sync(&mounted.dir);
    let stop_all = || {
        nodes.nodes.iter().for_each(|node| node.signal(Signal::STOP));
        kill_process(mounted.mount.worker().unwrap(), Signal::KILL).unwrap();
    };
    stop_all();
    let mut killed = program("exec cat \"$1\"", &path);
    let mut waiting = program("exec cat \"$1\"", &path);
    until("it is shown what is waited for", || waits_for(&mounted).contains("127.0.0.1"));
    let line = line_of_status(&mounted);
    assert!(line.contains("waits: ") && line.contains("127.0.0.1"), "{line}");
    assert!(!is_over(&mut killed) && !is_over(&mut waiting));
    // A waiting program can be killed.
    kill_process(Pid::from_child(&killed), Signal::KILL).unwrap();
    until("the program is killed", || is_over(&mut killed));
    // Other programs continue to read when the nodes reply again.
    nodes.nodes.iter().for_each(|node| node.signal(Signal::CONT));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut waiting.stdout.take().unwrap(), &mut bytes).unwrap();
    assert!(waiting.wait().unwrap().success() && bytes == [1; LEN]);
    until("it serves again", || listed(&mounted)["waits_for"].is_null());
    assert!(line_of_status(&mounted).ends_with("serves"));
    // A directory that no program uses can be unmounted while the mount waits.
    stop_all();
    until("it is shown what is waited for", || waits_for(&mounted).contains("127.0.0.1"));
    let output = farcall().args(["umount", mounted.dir.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!mounted::is_mounted(&mounted.dir));
    nodes.nodes.iter().for_each(|node| node.signal(Signal::CONT));
}

#[test]
fn shows_no_error_after_a_mount_was_stopped_beyond_its_lease() {
    let Some(nodes) = VolumeNodes::new("lapsed") else { return };
    let mounted = nodes.mount("0");
    let path = mounted.dir.join("file");
    // The written data is not synced.
    let mut writer = program(
        "exec 3<>\"$1\"; head -c 300000 /dev/zero >&3; echo ready; read go; head -c 300000 /dev/zero >&3; sync \"$1\"",
        &path,
    );
    ready(&mut writer);
    for _ in 0..2 {
        mounted.signal_all(Signal::STOP);
        until("its lease has ended", || nodes.memory("status", &[])[0]["volumes"][0]["is_mounted"] == false);
        mounted.signal_all(Signal::CONT);
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), LEN as u64);
    }
    writer.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(writer.wait().unwrap().success());
    assert!(fs::read(&path).unwrap() == [0; 2 * LEN]);
    mounted.end();
}

#[test]
fn waits_for_the_mount_that_took_its_volume_and_shows_its_files() {
    let Some(nodes) = VolumeNodes::new("stopped") else { return };
    let first = nodes.mount("first");
    let path = first.dir.join("file");
    fs::write(&path, [1; LEN]).unwrap();
    sync(&first.dir);
    // A program of the first machine, with an open handle to a file that is not synced.
    let mut late =
        program("exec 3<>\"$1\"; echo ready; read go; exec dd if=/dev/zero bs=300000 count=1 1>&3", &path);
    ready(&mut late);
    first.signal_all(Signal::STOP);
    // The program writes and waits for the server.
    late.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let second = nodes.mount("second");
    let there = second.dir.join("file");
    assert!(fs::read(&there).unwrap() == [1; LEN]);
    fs::remove_file(&there).unwrap();
    fs::write(second.dir.join("other"), [3; LEN]).unwrap();
    fs::write(&there, [2; LEN]).unwrap();
    sync(&second.dir);
    first.signal_all(Signal::CONT);
    let mut reader = program("exec cat \"$1\"", &path);
    until("it is shown what is waited for", || waits_for(&first).contains("is mounted by"));
    assert!(!is_over(&mut reader) && !is_over(&mut late));
    assert!(fs::read(&there).unwrap() == [2; LEN]);
    second.end();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut reader.stdout.take().unwrap(), &mut bytes).unwrap();
    assert!(reader.wait().unwrap().success() && bytes == [2; LEN]);
    // The handle refers to a file that has been replaced: the written data is lost.
    assert!(!late.wait().unwrap().success());
    assert!(fs::read(&path).unwrap() == [2; LEN] && fs::read(first.dir.join("other")).unwrap() == [3; LEN]);
    fs::write(&path, [4; LEN]).unwrap();
    sync(&first.dir);
    first.end();
    let third = nodes.mount("third");
    assert!(fs::read(third.dir.join("file")).unwrap() == [4; LEN]);
    third.end();
}

#[test]
fn keeps_a_volume_by_a_witness_when_node_and_mount_end() {
    let Some(mut nodes) = VolumeNodes::new("witness") else { return };
    let witness = ["memory", "serve", "--witness", "--lease-ms", "2000", "--listen", "127.0.0.1:0"];
    let witness = Process::start(&witness);
    assert_eq!(witness.ready["slabs"], 0);
    nodes.addresses += &format!(",{}", witness.ready["rpc"].as_str().unwrap());
    let mut mounted = nodes.mount("0");
    for round in 1..3_u8 {
        let file = mounted.dir.join("file");
        fs::write(&file, vec![round; LEN]).unwrap();
        sync(&mounted.dir);
        // A restarted node has the slabs before it has their data.
        until("both nodes have a replica in sync, and all three the notes", || {
            let status = nodes.memory("status", &[]);
            let volumes = [0, 1, 2].map(|at: usize| status[at]["volumes"][0].clone());
            assert_eq!(status[2]["slabs"], 0);
            let has_replicas = |node: usize| {
                status[node]["holders"].as_array().unwrap().iter().any(|holder| {
                    let client = &holder["redundancy"];
                    let is_in_sync = client["degraded"] == 0 && client["copying"] == 0 && client["lost"] == 0;
                    holder["is_connected"] == true && is_in_sync && client["slabs"] != 0
                })
            };
            volumes.iter().all(|volume| {
                volume["is_mounted"] == true
                    && ["epoch", "notes_bytes"].iter().all(|what| volume[*what] == volumes[0][*what])
            }) && volumes[0]["slabs"] == volumes[1]["slabs"]
                && [0, 1].into_iter().all(has_replicas)
        });
        let exits = usize::from(round) % 2;
        nodes.nodes[exits].signal(Signal::KILL);
        mounted.kill();
        mounted = nodes.mount(&round.to_string());
        assert!(fs::read(mounted.dir.join("file")).unwrap() == vec![round; LEN]);
        nodes.restart(exits);
    }
    mounted.end();
}

//! Memory nodes that register in a real etcd, as users of the program run them.

#[path = "../memory/space/tests/support/etcd_server.rs"]
mod etcd_server;
#[path = "support/mounted.rs"]
mod mounted;

use std::fs;
use std::path::{Path, PathBuf};

use etcd_server::{EtcdServer, until};
use mounted::{Process, can_mount, farcall};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Creates a new directory inside a test's own.
fn make(data: &TempDir, name: &str) -> PathBuf {
    let dir = data.path().join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

const SERVE: [&str; 8] = ["memory", "serve", "--size", "128M", "--slab", "4M", "--lease-ms", "2000"];

fn node(directory: &str) -> Process {
    node_at("127.0.0.1:0", directory)
}

fn node_at(address: &str, directory: &str) -> Process {
    Process::start(&[&SERVE[..], &["--listen", address, "--register", directory]].concat())
}

fn address(node: &Process) -> &str {
    node.ready["rpc"].as_str().unwrap()
}

/// Returns the status of the nodes, or the program's error message.
fn status(nodes: &str) -> Result<Vec<Value>, String> {
    let output = farcall().args(["--json", "memory", "status", "--nodes", nodes]).output().unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

fn addresses(nodes: &str) -> Vec<String> {
    let found = status(nodes).unwrap_or_default();
    found.iter().map(|node| node["node"].as_str().unwrap().to_owned()).collect()
}

fn mount(dir: &Path, directory: &str, more: &[&str]) -> Result<Process, String> {
    let options = ["--nodes", directory, "--size", "64M", "--slab", "4M"];
    Process::try_start(&[&["mount", dir.to_str().unwrap()], &options[..], more].concat())
}

fn end(mut mount: Process) {
    mount.signal(Signal::TERM);
    assert!(mount.child.wait().unwrap().success());
}

#[test]
fn nodes_are_found_by_the_name_of_their_cluster_until_they_end() {
    let data = tempfile::tempdir().unwrap();
    let Some(mut etcd) = EtcdServer::start(data.path()) else { return };
    let directory = etcd.directory("files");
    let nobody = status(&directory).unwrap_err();
    assert!(
        nobody.contains("no memory node is registered") && nobody.contains("--register etcd://"),
        "{nobody}"
    );
    let everywhere =
        Process::try_start(&["memory", "serve", "--listen", "0.0.0.0:0", "--register", &directory])
            .err()
            .unwrap();
    assert!(everywhere.contains("--advertise HOST:PORT"), "{everywhere}");
    let [first, mut second, third] = [(); 3].map(|()| node(&directory));
    assert_eq!(addresses(&directory), [address(&first), address(&second), address(&third)]);
    assert_eq!(addresses(&etcd.directory("others")), [""; 0]);
    end(first);
    assert_eq!(addresses(&directory), [address(&second), address(&third)]);
    second.child.kill().unwrap();
    until("who was killed is not found any more", || addresses(&directory) == [address(&third)]);
    etcd.kill();
    let away = status(&directory).unwrap_err();
    assert!(away.contains("no etcd server answers") && away.contains("Connection refused"), "{away}");
}

#[test]
fn files_move_to_nodes_that_register_later_and_need_no_etcd() {
    if !can_mount() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let Some(mut etcd) = EtcdServer::start(&make(&data, "etcd")) else { return };
    let directory = etcd.directory("files");
    let dir = make(&data, "mount");
    let mut nodes = vec![node(&directory)];
    let few = mount(&dir, &directory, &[]).err().unwrap();
    assert!(few.contains("--replicas is 2, and nodes registered: 1"), "{few}");
    nodes.push(node(&directory));
    let mounted = mount(&dir, &directory, &[]).unwrap();
    let (file, bytes) = (dir.join("file"), (0..9 << 20).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    fs::write(&file, &bytes).unwrap();
    // One node is killed and the other one is drained: the nodes that joined then have all data.
    let _joined = [(); 2].map(|()| node(&directory));
    nodes.remove(0).child.kill().unwrap();
    let mut drain = farcall();
    drain.args(["memory", "drain", "--force", "--nodes", address(&nodes[0])]);
    assert!(drain.status().unwrap().success());
    end(nodes.remove(0));
    assert!(fs::read(&file).unwrap() == bytes);
    // The worker is killed while etcd is not available: its successor knows the nodes that joined.
    etcd.kill();
    let before = mounted.worker().unwrap();
    rustix::process::kill_process(before, Signal::KILL).unwrap();
    until("another process serves", || mounted.worker().is_some_and(|worker| worker != before));
    fs::write(dir.join("other"), &bytes).unwrap();
    for name in ["file", "other"] {
        assert!(fs::read(dir.join(name)).unwrap() == bytes, "{name}");
    }
    end(mounted);
}

#[test]
fn finds_a_volume_on_nodes_that_registered_later() {
    if !can_mount() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let Some(etcd) = EtcdServer::start(&make(&data, "etcd")) else { return };
    let directory = etcd.directory("files");
    let (dir, key) = (make(&data, "mount"), data.path().join("key"));
    let volume = ["--volume", "files", "--volume-key", key.to_str().unwrap()];
    let mut old = [(); 2].map(|()| node(&directory));
    let mounted = mount(&dir, &directory, &volume).unwrap();
    let bytes = (0..9 << 20).map(|at| (at % 251) as u8).collect::<Vec<u8>>();
    fs::write(dir.join("file"), &bytes).unwrap();
    let new = [(); 2].map(|()| node(&directory));
    let has_it = |node: &Process| {
        let said = status(address(node)).unwrap();
        said[0]["volumes"][0]["slabs"].as_u64().is_some_and(|slabs| slabs > 0)
    };
    for node in &old {
        let mut drain = farcall();
        drain.args(["memory", "drain", "--force", "--nodes", address(node)]);
        assert!(drain.status().unwrap().success());
    }
    until("the new nodes have everything", || new.iter().all(has_it) && !old.iter().any(has_it));
    for node in &mut old {
        node.child.kill().unwrap();
        node.child.wait().unwrap();
    }
    assert!(fs::read(dir.join("file")).unwrap() == bytes);
    end(mounted);
    // The old nodes are available again, empty, and the new ones are unreachable.
    let again = old.each_ref().map(|node| node_at(address(node), &directory));
    new.iter().for_each(|node| node.signal(Signal::STOP));
    let are_gone = || addresses(&directory) == again.each_ref().map(address);
    until("the new nodes are not registered any more", are_gone);
    let refused = mount(&dir, &directory, &volume).err().unwrap();
    assert!(refused.contains("one that does not may have it"), "{refused}");
    new.iter().for_each(|node| node.signal(Signal::CONT));
    until("they are registered again", || addresses(&directory).len() == 4);
    let mounted = mount(&dir, &directory, &volume).unwrap();
    assert!(fs::read(dir.join("file")).unwrap() == bytes);
    end(mounted);
}

#[test]
fn waits_for_known_nodes_instead_of_recreating_a_volume() {
    if !can_mount() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let Some(etcd) = EtcdServer::start(&make(&data, "etcd")) else { return };
    let directory = etcd.directory("files");
    let (dir, key) = (make(&data, "mount"), data.path().join("key"));
    let volume = ["--volume", "files", "--volume-key", key.to_str().unwrap()];
    let old = [(); 2].map(|()| node(&directory));
    let mounted = mount(&dir, &directory, &volume).unwrap();
    fs::write(dir.join("file"), b"kept").unwrap();
    end(mounted);
    // The nodes of the file system become unreachable, and others join.
    let new = [(); 2].map(|()| node(&directory));
    old.iter().for_each(|node| node.signal(Signal::STOP));
    let asked = |wanted: &[&Process]| {
        let lines = farcall().args(["memory", "status", "--nodes", &directory]).output().unwrap();
        let lines = String::from_utf8(lines.stdout).unwrap();
        wanted.iter().all(|node| lines.contains(address(node)))
            && !old.iter().any(|node| lines.contains(address(node)))
    };
    until("the old nodes are not registered any more", || asked(&[&new[0], &new[1]]));
    let refused = mount(&dir, &directory, &volume).err().unwrap();
    assert!(
        refused.contains("no node that answers knows it, and one that does not may have it"),
        "{refused}"
    );
    old.iter().for_each(|node| node.signal(Signal::CONT));
    until("the old nodes are registered again", || addresses(&directory).len() == 4);
    let mounted = mount(&dir, &directory, &volume).unwrap();
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"kept");
    end(mounted);
    let mut forget = farcall();
    forget.args(["memory", "forget", "--nodes", &directory]).args(volume);
    assert!(forget.status().unwrap().success());
    let mounted = mount(&dir, &directory, &volume).unwrap();
    assert!(!dir.join("file").exists(), "it is a new one");
    end(mounted);
}

//! Volumes on two memory nodes, and their mounts, by the program itself.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::mounted::{LOST, Process, can_mount, farcall};

/// Two nodes that store a volume, and a directory for its mounts.
pub struct VolumeNodes {
    pub root: PathBuf,
    pub addresses: String,
    pub nodes: [Process; 2],
}

const SERVE: [&str; 8] = ["memory", "serve", "--size", "128M", "--slab", "4M", "--lease-ms", "2000"];

impl VolumeNodes {
    pub fn new(name: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let root = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let nodes = [(); 2].map(|()| Process::start(&[&SERVE[..], &["--listen", "127.0.0.1:0"]].concat()));
        let addresses = nodes.each_ref().map(|node| node.ready["rpc"].as_str().unwrap()).join(",");
        Some(Self { root, addresses, nodes })
    }

    /// Kills a node and starts it again, empty.
    pub fn restart(&mut self, at: usize) {
        self.kill(at);
        self.start_again(at);
    }

    pub fn kill(&mut self, at: usize) {
        self.nodes[at].signal(Signal::KILL);
        self.nodes[at].child.wait().unwrap();
    }

    pub fn start_again(&mut self, at: usize) {
        let address = self.addresses.split(',').nth(at).unwrap();
        self.nodes[at] = Process::start(&[&SERVE[..], &["--listen", address]].concat());
    }

    pub fn key(&self) -> String {
        self.root.join("key").to_str().unwrap().to_owned()
    }

    /// Mounts the volume. Returns the error message if it is refused.
    pub fn try_mount(&self, name: &str) -> Result<VolumeMount, String> {
        self.try_mount_with(name, &[])
    }

    /// Does the same with further options.
    pub fn try_mount_with(&self, name: &str, more: &[&str]) -> Result<VolumeMount, String> {
        let dir = self.root.join(name);
        let _ = fs::create_dir(&dir);
        let (key, at) = (self.key(), dir.to_str().unwrap().to_owned());
        let options = ["--nodes", &self.addresses, "--size", "96M", "--slab", "4M"];
        let volume = ["--volume", "files", "--volume-key", &key];
        let mount = Process::try_start(&[&["mount", &at], &options[..], &volume[..], more].concat())?;
        Ok(VolumeMount { dir, mount })
    }

    /// Mounts the volume when the lease of an earlier mount has ended.
    pub fn mount(&self, name: &str) -> VolumeMount {
        self.mount_with(name, &[])
    }

    /// Does the same with further options.
    pub fn mount_with(&self, name: &str, more: &[&str]) -> VolumeMount {
        let begun = Instant::now();
        loop {
            match self.try_mount_with(name, more) {
                Ok(mount) => return mount,
                Err(said) => assert!(begun.elapsed() < LOST && said.contains("is mounted by"), "{said}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the output of a command about the nodes.
    pub fn memory(&self, command: &str, more: &[&str]) -> Value {
        let mut asked = farcall();
        asked.args(["--json", "memory", command, "--nodes", &self.addresses]).args(more);
        let output = asked.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for VolumeNodes {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A mount of a volume. When this is dropped, the server is killed first, stopped or not, and only then is the
/// directory accessed. Hence no process waits for it forever, however the test ends.
pub struct VolumeMount {
    pub dir: PathBuf,
    pub mount: Process,
}

impl VolumeMount {
    /// Kills all processes, as if the machine lost power.
    pub fn kill(&mut self) {
        let worker = self.mount.worker();
        let _ = self.mount.child.kill();
        let _ = self.mount.child.wait();
        if let Some(worker) = worker {
            let _ = kill_process(worker, Signal::KILL);
        }
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }

    pub fn signal_all(&self, signal: Signal) {
        self.mount.signal(signal);
        kill_process(self.mount.worker().unwrap(), signal).unwrap();
    }

    /// Ends the mount as a user does.
    pub fn end(mut self) {
        self.mount.signal(Signal::TERM);
        assert!(self.mount.child.wait().unwrap().success());
    }
}

impl Drop for VolumeMount {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until all operations on a mount are stored at the nodes.
pub fn sync(dir: &Path) {
    File::open(dir).unwrap().sync_all().unwrap();
}

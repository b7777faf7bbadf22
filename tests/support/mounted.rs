//! A file system mounted over two memory nodes, by the program itself.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout after which a test fails, even on a busy machine.
pub const LOST: Duration = Duration::from_secs(240);

pub fn farcall() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.stdin(Stdio::null());
    command
}

/// A process that prints one line of JSON when it is ready, and is killed when this is dropped.
pub struct Process {
    pub child: Child,
    pub ready: Value,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Self {
        Self::try_start(arguments).unwrap_or_else(|said| panic!("{arguments:?}: {said}"))
    }

    /// Starts the process. Returns its standard error instead if it exits.
    pub fn try_start(arguments: &[&str]) -> Result<Self, String> {
        Starting::new(arguments).ready()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the serving process; `None` while it is being replaced.
    pub fn worker(&self) -> Option<Pid> {
        worker_of(Pid::from_child(&self.child))
    }
}

/// Returns the process that serves the files of the mount `supervisor`.
pub fn worker_of(supervisor: Pid) -> Option<Pid> {
    let tasks = fs::read_dir(format!("/proc/{supervisor}/task")).ok()?.flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<i32> = children.collect::<String>().split_whitespace().flat_map(str::parse).collect();
    all.first().and_then(|pid| Pid::from_raw(*pid))
}

/// A process that is not ready yet.
pub struct Starting {
    child: Child,
}

impl Starting {
    pub fn new(arguments: &[&str]) -> Self {
        let mut command = farcall();
        command.arg("--json").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap() }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until the process is ready. Returns its standard error instead if it exits.
    pub fn ready(mut self) -> Result<Process, String> {
        let (said, mut line) = (self.child.stderr.take().unwrap(), String::new());
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str(&line) else {
            self.child.wait().unwrap();
            return Err(std::io::read_to_string(said).unwrap());
        };
        // Its messages are forwarded to the output of the test.
        std::thread::spawn(move || {
            BufReader::new(said).lines().for_each(|line| eprintln!("{}", line.unwrap()))
        });
        Ok(Process { child: self.child, ready })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether this process can mount; prints the reason if not.
pub fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        println!("SKIPPED: mounting needs root and /dev/fuse");
        return false;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|number| number.parse().ok()).collect();
    let is_new = numbers[..2] >= [6, 9][..];
    if !is_new {
        println!("SKIPPED: Linux {release} does not ask again for what was not answered");
    }
    is_new
}

/// A mount over two nodes.
pub struct Mounted {
    pub dir: PathBuf,
    pub mount: Process,
    _nodes: [Process; 2],
}

impl Mounted {
    /// Mounts a small file system; `None` if this process cannot mount.
    pub fn new(name: &str) -> Option<Self> {
        Self::of_size(name, 96)
    }

    /// Mounts a file system of `mib` MiB; `None` if this process cannot mount.
    pub fn of_size(name: &str, mib: u32) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (donated, size) = (format!("{}M", mib + 32), format!("{mib}M"));
        let serve = ["memory", "serve", "--listen", "127.0.0.1:0", "--size", &donated, "--slab", "4M"];
        let nodes = [(); 2].map(|()| Process::start(&serve));
        let addresses = nodes.each_ref().map(|node| node.ready["rpc"].as_str().unwrap()).join(",");
        let options = ["--nodes", &addresses, "--size", &size, "--slab", "4M"];
        let mount = Process::start(&[&["mount", dir.to_str().unwrap()], &options[..]].concat());
        Some(Self { dir, mount, _nodes: nodes })
    }

    pub fn worker(&self) -> Option<Pid> {
        self.mount.worker()
    }

    /// Kills the serving process. Returns whether there was one.
    pub fn kill_worker(&self) -> bool {
        self.worker().is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok())
    }

    /// Ends the mount as a user does.
    pub fn end(mut self) {
        self.mount.signal(Signal::TERM);
        assert!(self.mount.child.wait().unwrap().success());
        assert!(!is_mounted(&self.dir));
        fs::remove_dir(&self.dir).unwrap();
    }
}

pub fn is_mounted(dir: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(dir.to_str().unwrap())
}

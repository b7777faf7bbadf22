//! Nodes in this process and in others, and regions over them.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_link::SplitMix64;
use farcall_memory::{ClientConfig, MemoryServer, NodeConfig, PAGE_BYTES};
use farcall_region::*;
use farcall_softnic::SoftNic;
use rustix::process::set_parent_process_death_signal;

pub fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}
pub use rustix::process::{Pid, Signal, kill_process};

/// Timeout of a test, which even a busy machine does not reach.
pub const LOST: Duration = Duration::from_secs(600);
/// Duration that exceeds every pause of the machine, so that no lease and no request expires.
pub const LONG: Duration = Duration::from_secs(3_000);
pub const ROLE: &str = "FARCALL_TEST_ROLE";
pub const NODES: &str = "FARCALL_TEST_NODES";
pub const SLAB_BYTES: usize = 32 * PAGE_BYTES;

pub fn config(nodes: Vec<String>, pages: usize, resident: usize) -> RegionConfig {
    RegionConfig {
        memory: ClientConfig {
            replicas: nodes.len().min(2),
            nodes,
            size_bytes: (pages * PAGE_BYTES) as u64,
            slab_bytes: SLAB_BYTES as u64,
            patience: LONG,
            ..ClientConfig::default()
        },
        resident_limit_bytes: (resident * PAGE_BYTES) as u64,
        read_ahead_pages: 16,
    }
}

fn donated() -> NodeConfig {
    NodeConfig { slab_bytes: SLAB_BYTES, slabs: 64, term: LONG, ..NodeConfig::default() }
}

/// Starts nodes in this process.
pub fn nodes_here(count: usize) -> (Vec<MemoryServer>, Vec<String>) {
    let nodes: Vec<MemoryServer> =
        (0..count).map(|_| MemoryServer::start(&nic(), "127.0.0.1:0", donated()).unwrap()).collect();
    let addresses = nodes.iter().map(|node| node.address().to_string()).collect();
    (nodes, addresses)
}

/// Entry point of a node process.
pub fn be_node() {
    let server = MemoryServer::start(&nic(), "127.0.0.1:0", donated()).unwrap();
    println!("serving on <{}>", server.address());
    std::thread::sleep(LOST);
}

/// A child process, killed on drop.
pub struct Other {
    pub process: Child,
    said: BufReader<ChildStdout>,
    input: ChildStdin,
}

impl Other {
    pub fn start(role: &str, nodes: &[String]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::spawn(
            command.args(["--exact", "processes::child_entry"]).env(ROLE, role).env(NODES, nodes.join(" ")),
        )
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut process = command
            .args(["--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        let input = process.stdin.take().unwrap();
        Self { process, said, input }
    }

    /// Waits for a line that contains a text.
    pub fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the process ended without {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Returns the rest of its output.
    pub fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        rest
    }

    pub fn tell(&mut self) {
        self.input.write_all(b"go on\n").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn end(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the child process: waits for a line from the parent.
pub fn wait_to_be_told() {
    let mut line = String::new();
    assert_ne!(std::io::stdin().read_line(&mut line).unwrap(), 0);
}

pub fn die_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

/// Starts nodes in processes of their own.
pub fn node_processes(count: usize) -> (Vec<Other>, Vec<String>) {
    let mut nodes: Vec<Other> = (0..count).map(|_| Other::start("node", &[])).collect();
    let address = |node: &mut Other| {
        let line = node.wait_for("serving on <");
        line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).unwrap().0.to_owned()
    };
    let addresses = nodes.iter_mut().map(address).collect();
    (nodes, addresses)
}

pub fn until(what: &str, mut is_done: impl FnMut() -> bool) {
    let by = Instant::now() + LOST;
    while !is_done() {
        assert!(Instant::now() < by, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Evicts the whole region from local memory.
pub fn until_gone(handle: Handle<'_>, len_bytes: usize) {
    handle.dont_need(0..len_bytes);
    until("all pages left", || handle.status().resident_bytes == 0);
}

/// Returns the seed from the environment, or a new one, and prints it.
pub fn seed() -> u64 {
    let given = std::env::var("FARCALL_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(|| SplitMix64::new(std::process::id().into()).next_u64());
    println!("FARCALL_TEST_SEED={seed}");
    seed
}

/// A file of this test, removed on drop.
pub struct TestFile(pub std::path::PathBuf);

impl TestFile {
    pub fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("farcall-region-{name}-{}", std::process::id())))
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

//! With a real etcd.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farcall_membership::{Directory, Joining, Registration};
use farcall_memory::{ClientConfig, MemoryServer, NodeConfig, PAGE_BYTES, RemoteMemory};
use farcall_softnic::SoftNic;

/// After that a test calls something lost, however busy the machine is.
const LOST: Duration = Duration::from_secs(120);
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// An etcd of one server.
struct Etcd {
    server: Child,
    client: SocketAddr,
    peer: SocketAddr,
}

impl Etcd {
    fn start(data: &Path) -> Self {
        // Held together until both are known.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = ports.map(|port| port.local_addr().unwrap());
        let mut etcd = Self { server: Self::spawn(client, peer, data), client, peer };
        etcd.until_it_answers();
        etcd
    }

    fn spawn(client: SocketAddr, peer: SocketAddr, data: &Path) -> Child {
        let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data).args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command.arg("--initial-cluster").arg(format!("default={peer}"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("Debian's etcd-server is installed")
    }

    fn until_it_answers(&mut self) {
        until("etcd answers", || self.directory().nodes().is_ok());
    }

    fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    fn start_again(&mut self, data: &Path) {
        self.server = Self::spawn(self.client, self.peer, data);
        self.until_it_answers();
    }

    fn directory(&self) -> Directory {
        format!("etcd://{}/test", self.client).parse().unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LOST, "not in time: {what}");
        sleep(LOOK_PERIOD);
    }
}

fn node() -> MemoryServer {
    let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
    MemoryServer::start(&SoftNic::new(), "127.0.0.1:0", donated).unwrap()
}

#[test]
#[ignore = "needs Debian's etcd-server"]
fn nodes_are_found_while_they_are_there_and_what_is_in_use_needs_no_etcd() {
    let data = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(data.path());
    let directory = etcd.directory();
    assert_eq!(directory.nodes().unwrap(), []);
    let nodes = [node(), node()];
    let [first, second] = [0, 1].map(|at| nodes[at].address());
    let registered = Registration::start(&directory, first).unwrap();
    assert_eq!(directory.nodes().unwrap(), [first]);
    let config = ClientConfig {
        nodes: vec![first.to_string()],
        nodes_max: 4,
        size_bytes: 1 << 20,
        slab_bytes: 1 << 20,
        patience: LOST,
        ..ClientConfig::default()
    };
    let memory = Arc::new(RemoteMemory::open(Arc::new(SoftNic::new()), config).unwrap());
    memory.write(0, &[1; 3 * PAGE_BYTES]).unwrap();
    assert_eq!(memory.status().degraded, 1, "one node cannot have two replicas");
    let joining = Joining::start(directory.clone(), &memory).unwrap();
    let other = Registration::start(&directory, second).unwrap();
    until("the second node has a replica", || memory.status().degraded == 0);

    etcd.kill();
    memory.write(0, &[2; 2 * PAGE_BYTES]).unwrap();
    let mut found = [0; 3 * PAGE_BYTES];
    memory.read(0, &mut found).unwrap();
    assert!(found[..2 * PAGE_BYTES].iter().all(|byte| *byte == 2));
    // Nothing of what was is known: nodes register again.
    let empty = tempfile::tempdir().unwrap();
    etcd.start_again(empty.path());
    until("both are registered again", || directory.nodes().unwrap().len() == 2);

    drop(other);
    assert_eq!(directory.nodes().unwrap(), [first], "who ends is not found any more");
    drop(registered);
    assert_eq!(directory.nodes().unwrap(), []);
    memory.read(0, &mut found).unwrap();
    assert_eq!(memory.status().nodes.len(), 2, "a key that goes says nothing of its node");
    drop(joining);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
#[ignore = "needs Debian's etcd-server"]
fn where_a_volume_was_is_known_until_it_is_forgotten() {
    let data = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(data.path());
    let directory = etcd.directory();
    let nodes: Vec<SocketAddr> = vec!["10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()];
    assert_eq!(directory.nodes_of_volume("files").unwrap(), []);
    directory.note_volume("files", nodes.clone()).unwrap();
    assert_eq!(directory.nodes_of_volume("files").unwrap(), nodes);
    assert_eq!(directory.nodes_of_volume("other").unwrap(), []);
    assert_eq!(directory.nodes().unwrap(), [], "a volume is no node");
    directory.forget_volume("files").unwrap();
    assert_eq!(directory.nodes_of_volume("files").unwrap(), []);
}

//! A real etcd for tests. Other packages include this file as well.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Timeout of a wait, longer than any pause of a busy machine.
pub const LOST: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An etcd cluster of one server, which is killed on drop.
pub struct EtcdServer {
    server: Child,
    client: SocketAddr,
    peer: SocketAddr,
}

impl EtcdServer {
    /// Starts a server that stores its data in this directory; if etcd is not installed, prints that and returns
    /// `None`.
    pub fn start(data: &Path) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED: Debian's etcd-server is not installed");
            return None;
        }
        // Both are bound until both are known, so that they differ.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = ports.map(|port| port.local_addr().unwrap());
        let mut etcd = Self { server: Self::spawn(client, peer, data), client, peer };
        etcd.until_it_answers();
        Some(etcd)
    }

    fn spawn(client: SocketAddr, peer: SocketAddr, data: &Path) -> Child {
        let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data).args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command.arg("--initial-cluster").arg(format!("default={peer}"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn until_it_answers(&mut self) {
        let client = self.client;
        // It listens when it has formed its cluster.
        until("etcd answers", || TcpStream::connect(client).is_ok());
        assert!(self.server.try_wait().unwrap().is_none(), "etcd ended");
    }

    pub fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Restarts the server at the same address, with the data in this directory.
    pub fn start_again(&mut self, data: &Path) {
        self.server = Self::spawn(self.client, self.peer, data);
        self.until_it_answers();
    }

    /// Returns the name of the directory of a cluster.
    pub fn directory(&self, cluster: &str) -> String {
        format!("etcd://{}/{cluster}", self.client)
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until `is_so` returns `true`; `what` describes it.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LOST, "not in time: {what}");
        sleep(POLL_INTERVAL);
    }
}

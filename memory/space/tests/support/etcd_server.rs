//! A real etcd. Not only of this package: others include this file.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// After that a test calls something lost, however busy the machine is.
pub const LOST: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An etcd of one server, killed when dropped.
pub struct EtcdServer {
    server: Child,
    client: SocketAddr,
    peer: SocketAddr,
}

impl EtcdServer {
    /// Starts one that keeps what it knows in this directory; nothing, with the reason, where none is installed.
    pub fn start(data: &Path) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED: Debian's etcd-server is not installed");
            return None;
        }
        // Held together until both are known.
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
        // It listens when it is a cluster of its own.
        until("etcd answers", || TcpStream::connect(client).is_ok());
        assert!(self.server.try_wait().unwrap().is_none(), "etcd ended");
    }

    pub fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// At the same address, with what it finds there.
    pub fn start_again(&mut self, data: &Path) {
        self.server = Self::spawn(self.client, self.peer, data);
        self.until_it_answers();
    }

    /// How a cluster is named.
    pub fn directory(&self, cluster: &str) -> String {
        format!("etcd://{}/{cluster}", self.client)
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LOST, "not in time: {what}");
        sleep(POLL_INTERVAL);
    }
}

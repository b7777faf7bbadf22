//! A real etcd for tests. Other packages include this file as well.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
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
        let address = loopback_address();
        let [client, peer] = [2379, 2380].map(|port| SocketAddr::new(address.into(), port));
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
        until("etcd is healthy", || {
            assert_eq!(self.server.try_wait().unwrap(), None, "etcd has ended");
            is_healthy(self.client).unwrap_or(false)
        });
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

/// Returns a loopback address that no other server of this process or of another one has.
///
/// A free port of 127.0.0.1 is not free for long: between the search for it and the server's `bind` another program may
/// bind it, or the kernel may choose it for an outgoing connection.
fn loopback_address() -> Ipv4Addr {
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    let server = SERVERS.fetch_add(1, Ordering::Relaxed);
    assert!(server < 4, "a process starts at most four etcd servers");
    // Process numbers have at most 22 bits (PID_MAX_LIMIT), the block 127.0.0.0/8 has 24.
    Ipv4Addr::from(127 << 24 | std::process::id() << 2 | server)
}

/// Returns whether the etcd server at this address can serve, by its own report.
fn is_healthy(client: SocketAddr) -> std::io::Result<bool> {
    let mut connection = TcpStream::connect(client)?;
    connection.set_read_timeout(Some(LOST))?;
    write!(connection, "GET /health HTTP/1.0\r\n\r\n")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    Ok(response.contains(r#""health":"true""#))
}

/// Waits until `is_so` returns `true`; `what` describes it.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LOST, "not in time: {what}");
        sleep(POLL_INTERVAL);
    }
}

//! Acknowledged writes survive a kill of the server at any time.

use crate::support::{PATIENCE, bytes, native, nic, serve};
use farcall_grpc_kv::v1::{DeleteRequest, PutRequest};
use farcall_grpc_kv::{Durability, OrderedStore, StoreOptions, Transport};
use farcall_stream::StreamOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FOLDER: &str = "FARCALL_GRPC_KV_TEST_FOLDER";
const DURABILITY: &str = "FARCALL_GRPC_KV_TEST_DURABILITY";

fn durability(name: &str) -> Durability {
    match name {
        "process" => Durability::Process,
        "group" => Durability::Group,
        _ => Durability::Each,
    }
}

fn options(name: &str) -> StoreOptions {
    StoreOptions { durability: durability(name), ..StoreOptions::default() }
}

/// Entry point of the server process, if the variables are set.
#[test]
fn child_serves() {
    let (Ok(folder), Ok(name)) = (std::env::var(FOLDER), std::env::var(DURABILITY)) else { return };
    let folder = PathBuf::from(folder);
    let store = Arc::new(OrderedStore::open(&folder.join("store"), options(&name)).unwrap());
    let server = serve(store, Transport::Native(nic(), StreamOptions::default()));
    // Renamed, so that the parent never reads a partial address.
    std::fs::write(folder.join("told"), server.address().to_string()).unwrap();
    std::fs::rename(folder.join("told"), folder.join("address")).unwrap();
    // The parent kills this process; the sleep bounds its lifetime if the parent has failed.
    std::thread::sleep(2 * PATIENCE);
}

struct Server(Child);

impl Server {
    fn start(folder: &Path, durability: &str) -> (Self, SocketAddr) {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "durability::child_serves", "--test-threads=1"])
            .env(FOLDER, folder)
            .env(DURABILITY, durability)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(process);
        let (path, start) = (folder.join("address"), Instant::now());
        loop {
            if let Ok(address) = std::fs::read_to_string(&path) {
                std::fs::remove_file(&path).unwrap();
                return (server, address.parse().unwrap());
            }
            assert!(start.elapsed() < PATIENCE, "the server did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn key(writer: u64, number: u64) -> String {
    format!("{writer}-{number:08}")
}

/// Checks the records of one writer after `acknowledged` acknowledged writes. Each third write deletes the record of
/// the write before it.
fn check(store: &OrderedStore, writer: u64, acknowledged: u64) {
    for number in 0..acknowledged {
        let found = store.get(key(writer, number).as_bytes(), None).unwrap();
        // The deletion in progress may have been executed.
        let may_be_gone = number % 3 == 1;
        let is_gone = may_be_gone && number + 1 < acknowledged;
        match found {
            Some(value) => {
                assert!(!is_gone, "record {number} of {writer} is back, of {acknowledged}");
                assert_eq!(value, bytes(&format!("value {number}")));
            }
            None => assert!(
                may_be_gone || number % 3 == 2,
                "record {number} of {writer} is lost, of {acknowledged}"
            ),
        }
    }
    // At most one unacknowledged write was in progress.
    assert_eq!(store.get(key(writer, acknowledged + 1).as_bytes(), None).unwrap(), None);
}

async fn write(address: SocketAddr, writer: u64, acknowledged: &std::sync::atomic::AtomicU64) {
    let mut client = native(address).await;
    for number in 0_u64.. {
        let written = if number % 3 == 2 {
            client.delete(DeleteRequest { key: bytes(&key(writer, number - 1)) }).await.map(drop)
        } else {
            let request =
                PutRequest { key: bytes(&key(writer, number)), value: bytes(&format!("value {number}")) };
            client.put(request).await.map(drop)
        };
        if written.is_err() {
            return;
        }
        acknowledged.store(number + 1, std::sync::atomic::Ordering::SeqCst);
    }
}

fn seed() -> u64 {
    std::env::var("FARCALL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn survive(name: &str, writes_max: u64) {
    let seed = seed();
    println!("FARCALL_TEST_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for round in 0..4_u64 {
        let folder = tempfile::tempdir().unwrap();
        let (server, address) = Server::start(folder.path(), name);
        let acknowledged: [_; 3] = std::array::from_fn(|_| Arc::new(std::sync::atomic::AtomicU64::new(0)));
        // The server is killed while writes are in progress, after this number of them.
        let enough = 5 + (seed.wrapping_add(round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % writes_max;
        runtime.block_on(async {
            let writers = tokio::task::LocalSet::new();
            for (writer, acknowledged) in acknowledged.iter().enumerate() {
                let acknowledged = Arc::clone(acknowledged);
                writers.spawn_local(async move { write(address, writer as u64, &acknowledged).await });
            }
            let kill = async {
                let count = || {
                    acknowledged
                        .iter()
                        .map(|count| count.load(std::sync::atomic::Ordering::SeqCst))
                        .sum::<u64>()
                };
                crate::support::until(|| count() >= enough).await;
                drop(server);
            };
            writers.run_until(kill).await;
            tokio::time::timeout(PATIENCE, writers).await.expect("writers hear that the server is gone");
        });
        let store = OrderedStore::open(&folder.path().join("store"), options(name)).unwrap();
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            check(&store, writer as u64, acknowledged.load(std::sync::atomic::Ordering::SeqCst));
        }
    }
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    survive("process", 300);
}

#[test]
fn preserves_acknowledged_writes_after_a_kill_if_synced() {
    survive("group", 60);
    survive("each", 30);
}

//! A key-value server in this process: one thread and one partition of the store per core, behind any number of doors.
//!
//! ```no_run
//! use farcall::kv_server::{KvServer, KvServerConfig};
//!
//! let config = KvServerConfig { tcp: vec!["127.0.0.1:0".parse()?], ..KvServerConfig::default() };
//! let server = KvServer::start(config)?;
//! println!("any memcached client may connect to {:?}", server.tcp_addresses());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod handler;
mod rpc_thread;
mod thread;

pub use config::{KvServerConfig, KvServerError};

use crate::rpc_server::Bootstrap;
use farcall_drive::Stop;
use farcall_kv::door::{Door, DoorConfig, Listener};
use farcall_kv::store::Partition;
use rpc_thread::RpcWorker;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thread::Worker;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct KvServer {
    stop: Stop,
    threads: Vec<std::thread::JoinHandle<Result<(), KvServerError>>>,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
    rpc: Option<SocketAddr>,
}

impl KvServer {
    /// Binds every door, then starts the threads.
    ///
    /// # Errors
    /// When an address cannot be bound, the store does not fit its limit, or a thread cannot be started. Nothing is
    /// left running then.
    pub fn start(config: KvServerConfig) -> Result<Self, KvServerError> {
        config.check()?;
        let listeners = config.listen()?;
        let tcp = listeners.iter().filter_map(Listener::tcp_address).collect();
        let started_ms = now_ms();
        let door_config =
            DoorConfig { connections_max: config.connections_max, started_ms, ..DoorConfig::default() };
        let doors = Door::bind(listeners, config.partitions, &door_config)?;
        let partitions = (0..config.partitions)
            .map(|partition| Partition::new(config.partition(partition), started_ms))
            .collect::<Result<Vec<_>, _>>()?;
        let mut bootstrap = config.rpc.map(listen_for_rpc).transpose()?;
        let rpc = bootstrap.as_ref().map(Bootstrap::address).transpose().map_err(KvServerError::Thread)?;
        let stop = Stop::new().map_err(KvServerError::Thread)?;
        let mut server = Self { stop, threads: Vec::new(), tcp, unix: config.unix.clone(), rpc };
        for (number, (door, partition)) in doors.into_iter().zip(partitions).enumerate() {
            let stop = server.stop.clone();
            let body: Box<dyn FnOnce() -> Result<(), KvServerError> + Send> = match bootstrap.take() {
                None => Box::new(move || Worker::new(door, partition, stop).run()),
                Some(bootstrap) => {
                    let worker = RpcWorker::new(door, partition, bootstrap)?;
                    Box::new(move || worker.run(stop))
                }
            };
            let thread = std::thread::Builder::new().name(format!("kv-{number}")).spawn(body);
            server.threads.push(thread.map_err(KvServerError::Thread)?);
        }
        Ok(server)
    }

    /// Where RPC clients connect.
    #[must_use]
    pub fn rpc_address(&self) -> Option<SocketAddr> {
        self.rpc
    }

    /// Where memcached clients connect over TCP, in the order of the configuration.
    #[must_use]
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Where memcached clients connect over Unix sockets.
    pub fn unix_paths(&self) -> impl Iterator<Item = &Path> {
        self.unix.iter().map(PathBuf::as_path)
    }

    /// Whether all threads still run. One that failed is reported by [`Self::stop`].
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !self.threads.iter().any(std::thread::JoinHandle::is_finished)
    }

    /// Stops: no new connections, what was received is answered, then the threads end.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub fn stop(mut self) -> Result<(), KvServerError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), KvServerError> {
        self.stop.request();
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or(Err(KvServerError::Panicked));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for KvServer {
    fn drop(&mut self) {
        // Failures were there to be had from `stop`.
        let _ = self.join();
    }
}

fn listen_for_rpc(address: SocketAddr) -> Result<Bootstrap, KvServerError> {
    Bootstrap::listen(address).map_err(|source| KvServerError::ListenRpc { address, source })
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_kv::memcached::client::Client;

    fn config(name: &str) -> KvServerConfig {
        KvServerConfig {
            tcp: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            unix: vec![socket(name)],
            memory_bytes: 32 << 20,
            ..KvServerConfig::default()
        }
    }

    /// The server removes it when it stops.
    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("farcall-test-{}-{name}.sock", std::process::id()))
    }

    #[test]
    fn both_doors_of_one_and_of_several_partitions_lead_to_the_same_store() {
        for partitions in [1, 3] {
            let server = KvServer::start(KvServerConfig { partitions, ..config("both") }).unwrap();
            let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
            let mut unix = Client::connect_unix(server.unix_paths().next().unwrap()).unwrap();
            for number in 0..100 {
                tcp.set(format!("key{number}").as_bytes(), b"value").unwrap();
            }
            for number in 0..100 {
                let value = unix.get(format!("key{number}").as_bytes()).unwrap();
                assert_eq!(value.unwrap().bytes, b"value");
            }
            assert!(server.is_serving());
            server.stop().unwrap();
            assert!(tcp.get(b"key1").is_err(), "a stopped server has no connections");
        }
    }

    #[test]
    fn senseless_configurations_are_refused() {
        let none = KvServerConfig { tcp: vec![], ..KvServerConfig::default() };
        assert!(matches!(KvServer::start(none), Err(KvServerError::NoDoor)));
        let tiny = KvServerConfig {
            memory_bytes: 1000,
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            ..KvServerConfig::default()
        };
        assert!(matches!(KvServer::start(tiny), Err(KvServerError::Store(_))));
    }

    #[test]
    fn an_address_in_use_is_named() {
        let first = KvServer::start(config("in-use")).unwrap();
        let again = KvServerConfig { tcp: vec![first.tcp_addresses()[0]], ..KvServerConfig::default() };
        let error = KvServer::start(again).unwrap_err().to_string();
        assert!(error.contains(&first.tcp_addresses()[0].to_string()), "{error}");
        let again = KvServerConfig { unix: vec![socket("in-use")], ..KvServerConfig::default() };
        assert!(KvServer::start(again).unwrap_err().to_string().contains("in use"));
    }
}

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
mod thread;
mod upkeep;

pub use config::{KvServerConfig, KvServerError};

use farcall_drive::Stop;
use farcall_kv::door::{Door, DoorConfig, Listener};
use farcall_kv::store::Partition;
use farcall_link::Waiting;
use farcall_providers::Selection;
use farcall_rpc::Server;
use handler::KvHandler;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thread::Worker;

/// A stopping thread answers what it received from sockets, but not for longer than this.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// A thread that serves RPC polls so often without work before it sleeps: some hundred microseconds.
const WAITING: Waiting = Waiting::Adaptive { max_poll_wc: 16, max_retry: 10_000 };

/// A running server. Dropping it stops it.
pub struct KvServer {
    stop: Stop,
    threads: Threads,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
}

/// Who serves: one thread for each partition.
enum Threads {
    /// Threads that sleep in their sockets.
    Sockets(Vec<JoinHandle<Result<(), KvServerError>>>),
    /// Threads that poll for calls and look at their sockets between them. None once it was stopped.
    Rpc(Option<Server>),
}

impl fmt::Debug for KvServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rpc = self.rpc_address();
        f.debug_struct("KvServer")
            .field("tcp", &self.tcp)
            .field("unix", &self.unix)
            .field("rpc", &rpc)
            .finish()
    }
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
        let stop = Stop::new().map_err(KvServerError::Thread)?;
        let parts = doors.into_iter().zip(partitions).collect();
        let threads = match config.rpc {
            None => Threads::Sockets(Vec::new()),
            Some(address) => {
                let has_sockets = !(config.tcp.is_empty() && config.unix.is_empty());
                return Ok(Self {
                    stop,
                    threads: Threads::Rpc(Some(serve_rpc((address, &config.nic), parts, has_sockets)?)),
                    tcp,
                    unix: config.unix,
                });
            }
        };
        let mut server = Self { stop, threads, tcp, unix: config.unix };
        server.serve_sockets(parts)?;
        Ok(server)
    }

    fn serve_sockets(&mut self, parts: Vec<(Door, Partition)>) -> Result<(), KvServerError> {
        let Threads::Sockets(threads) = &mut self.threads else { return Ok(()) };
        for (number, (door, partition)) in parts.into_iter().enumerate() {
            let stop = self.stop.clone();
            let thread = std::thread::Builder::new().name(format!("kv-{number}"));
            let thread = thread.spawn(move || Worker::new(door, partition, stop).run());
            threads.push(thread.map_err(KvServerError::Thread)?);
        }
        Ok(())
    }

    /// Where RPC clients connect.
    #[must_use]
    pub fn rpc_address(&self) -> Option<SocketAddr> {
        match &self.threads {
            Threads::Rpc(server) => server.as_ref().map(Server::address),
            Threads::Sockets(_) => None,
        }
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
        match &self.threads {
            Threads::Rpc(server) => server.as_ref().is_some_and(Server::is_serving),
            Threads::Sockets(threads) => !threads.iter().any(JoinHandle::is_finished),
        }
    }

    /// Stops: no new connections, what was received is answered, then the threads end.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub fn stop(mut self) -> Result<(), KvServerError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), KvServerError> {
        match &mut self.threads {
            Threads::Rpc(server) => server.take().map_or(Ok(()), stop_rpc),
            Threads::Sockets(threads) => {
                self.stop.request();
                let mut result = Ok(());
                for thread in threads.drain(..) {
                    let ended = thread.join().unwrap_or(Err(KvServerError::Panicked));
                    result = result.and(ended);
                }
                result
            }
        }
    }
}

impl Drop for KvServer {
    fn drop(&mut self) {
        // Failures were there to be had from `stop`.
        let _ = self.join();
    }
}

/// One RPC server thread for each partition, with its door beside it.
fn serve_rpc(
    (address, nic): (SocketAddr, &Selection),
    parts: Vec<(Door, Partition)>,
    has_sockets: bool,
) -> Result<Server, KvServerError> {
    // Checked with the configuration.
    let threads = parts.len() as u16;
    let parts = Mutex::new(parts.into_iter().map(Some).collect::<Vec<_>>());
    let handler = move |thread: u16| {
        let part = parts.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(thread)].take();
        let (door, partition) = part.expect("a server starts each of its threads once");
        KvHandler::new(partition, has_sockets.then_some(door))
    };
    let server = Server::builder().address(address.to_string()).threads(threads).waiting(WAITING);
    let chosen = nic.choose()?;
    Ok(server.start(&*chosen.provider, handler)?)
}

fn stop_rpc(server: Server) -> Result<(), KvServerError> {
    let was_serving = server.is_serving();
    server.drain();
    server.join();
    if was_serving { Ok(()) } else { Err(KvServerError::Ended) }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_kv::memcached::client::Client;
    use farcall_kv::wire::{Request, decode_item, decode_pong};
    use farcall_rpc::{CallError, Client as RpcClient, ClientOptions};
    use farcall_softnic::SoftNic;

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

    /// One RPC client for each partition; the first says how many there are and how keys are routed.
    fn rpc_clients(address: SocketAddr) -> (farcall_kv::Router, Vec<RpcClient>) {
        let connect = |thread| {
            let options = ClientOptions { probe: false, ..ClientOptions::default() }.thread(thread);
            RpcClient::connect(&SoftNic::new(), address.to_string(), options).unwrap()
        };
        let mut first = connect(0);
        let router = decode_pong(&call(&mut first, Request::Ping).unwrap()).unwrap().router();
        let others = (1..router.partitions() as u16).map(connect);
        let mut clients = vec![first];
        clients.extend(others);
        (router, clients)
    }

    fn call(client: &mut RpcClient, request: Request<'_>) -> Result<Vec<u8>, CallError> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        request.encode(&mut bytes);
        client.call(request.method().id(), &bytes, &mut reply).map(|()| reply)
    }

    #[test]
    fn rpc_and_memcached_clients_of_several_partitions_see_the_same_store() {
        for partitions in [1, 3] {
            let rpc = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
            let server = KvServer::start(KvServerConfig { partitions, rpc, ..config("rpc") }).unwrap();
            let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
            let (router, mut clients) = rpc_clients(server.rpc_address().unwrap());
            assert_eq!(clients.len(), partitions as usize);
            let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
            for key in &keys {
                let owner = router.owner(&router.key(key.as_bytes()).unwrap()) as usize;
                let put = Request::Put {
                    key: key.as_bytes(),
                    value: b"by rpc",
                    flags: 0,
                    ttl_ms: 0,
                    mode: farcall_kv::store::PutMode::Set,
                };
                call(&mut clients[owner], put).unwrap();
                // Through whatever thread the socket belongs to: forwarded to the owner.
                assert_eq!(tcp.get(key.as_bytes()).unwrap().unwrap().bytes, b"by rpc");
                tcp.set(key.as_bytes(), b"by tcp").unwrap();
                let get = Request::Get { key: key.as_bytes() };
                let reply = call(&mut clients[owner], get).unwrap();
                assert_eq!(decode_item(&reply).unwrap().unwrap().value, b"by tcp");
                let wrong = (owner + 1) % clients.len();
                if wrong != owner {
                    let refused = call(&mut clients[wrong], get);
                    assert!(matches!(refused, Err(CallError::Application { code: 3, .. })), "{refused:?}");
                }
            }
            assert!(server.is_serving());
            server.stop().unwrap();
            assert!(tcp.get(b"key1").is_err(), "a stopped server has no connections");
        }
    }

    #[test]
    fn an_idle_thread_sleeps_and_wakes_for_both_kinds_of_clients() {
        let rpc = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = KvServer::start(KvServerConfig { partitions: 2, rpc, ..config("idle") }).unwrap();
        let mut tcp = Client::connect_tcp(server.tcp_addresses()[0]).unwrap();
        let (_, mut clients) = rpc_clients(server.rpc_address().unwrap());
        for round in 0..5u8 {
            // Longer than the threads poll: what comes next finds them asleep, most of the time.
            std::thread::sleep(Duration::from_millis(20));
            tcp.set(b"key", &[round]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            for client in &mut clients {
                call(client, Request::Ping).unwrap();
            }
            assert_eq!(tcp.get(b"key").unwrap().unwrap().bytes, [round]);
        }
        server.stop().unwrap();
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

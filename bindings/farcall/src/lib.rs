//! Remote calls and a key-value store at the speed of one-sided RDMA: on an RNIC through libibverbs, and on machines
//! without one through a software RNIC in user space.
//!
//! This is the library whose interface is promised. The crates below it (`farcall-rpc`, `farcall-kv`, ...) are its
//! parts, and may change at any time.
//!
//! ```
//! # #[cfg(all(feature = "rpc", feature = "softnic"))] {
//! use farcall::SoftNic;
//! use farcall::rpc::{Call, Client, ClientOptions, Reply, Server};
//!
//! // A server: one thread, on a free port of the loopback interface.
//! let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
//!     reply.extend_from_slice(call.payload());
//!     Ok(())
//! };
//! let server = Server::builder().start(&SoftNic::new(), move |_thread| echo)?;
//!
//! // A client, here or in another process.
//! let address = server.address().to_string();
//! let mut client = Client::connect(&SoftNic::new(), address, ClientOptions::default())?;
//! let mut reply = Vec::new();
//! client.call(1, b"hello", &mut reply)?;
//! assert_eq!(reply, b"hello");
//!
//! server.drain();
//! server.join();
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! | feature | by default | what it adds |
//! |---|---|---|
//! | `rpc` | yes | [`rpc`]: servers and blocking clients of remote calls |
//! | `service` | yes | [`service`](macro@service): clients and a server out of a trait |
//! | `tokio` | | `rpc::AsyncClient` and `stream::AsyncStream`: the asynchronous ends |
//! | `kv` | yes | [`kv`]: clients of the key-value store, and its partitions |
//! | `stream` | yes | [`stream`]: byte streams, used as sockets are |
//! | `grpc` | | `grpc`: clients and servers that tonic generates, without HTTP/2 |
//! | `memory` | | `memory`: memory nodes, and replicated address spaces over them |
//! | `kv-server` | | `kv::KvServer`: the store as a service, for RPC and memcached clients |
//! | `softnic` | yes | [`SoftNic`]: the software RNIC: processes of one host, and RoCEv2 |
//! | `ibv` | yes | [`Ibv`]: the system's libibverbs, loaded at run time |
//! | `verbs` | | `verbs::owned`: verbs in safe Rust: owned buffers and queue pairs |
//! | `select` | | `select`: the choice between the two, as programs offer it to their users |
//! | `binding` | | `binding`: what bindings to other languages share; not promised, it may change at any time |
//! | `sim` | | `sim`: a simulated RDMA network in virtual time |
//! | `stats` | | `stats`: the counters of a process that uses this library, alive or dead |
//!
//! # What it promises, and what not
//!
//! `docs/SEMANTICS.md` of the repository states what an acknowledgement means, what runs at most once, when an outcome
//! is unknown; a test proves each sentence. Between processes of one host the software RNIC is inter-process
//! communication, not a network. Its keys catch bugs, not a malicious process of the same user. RDMA traffic is not
//! encrypted.

#[cfg(feature = "ibv")]
pub use farcall_ibv::Ibv;
/// Makes a service out of a trait: for a trait `Greeter`, the server `GreeterServer`, the client `GreeterClient`, and,
/// with the feature `tokio`, `GreeterAsyncClient`.
///
/// ```
/// use farcall::SoftNic;
/// use farcall::rpc::{ClientOptions, Server};
///
/// #[farcall::service]
/// trait Greeter {
///     fn hello(&self, name: String) -> Result<String, String>;
/// }
///
/// struct Polite;
///
/// impl Greeter for Polite {
///     fn hello(&self, name: String) -> Result<String, String> {
///         Ok(format!("hello, {name}"))
///     }
/// }
///
/// let server = Server::builder().serve(&SoftNic::new(), GreeterServer::new(Polite))?;
/// let address = server.address().to_string();
/// let mut greeter = GreeterClient::connect(&SoftNic::new(), address, ClientOptions::default())?;
/// assert_eq!(greeter.hello("you".into())?, "hello, you");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - All threads of the server share the service: methods take `&self`.
/// - Arguments are owned; they, the values and the errors implement serde's `Serialize` and `Deserialize`.
/// - An `async fn` runs as a task, so that a call that waits holds up no other; it ends when its client gives up. Other
///   methods run on the server's thread and are the quickest.
/// - `Result<impl Iterator<Item = T> + Send + 'static, E>` is a stream: the client takes its items page by page.
/// - Methods are numbered from 1 in their order, or by `#[method(7)]`; a number that two have does not compile.
/// - `#[farcall::service(version = 2)]`: a client and a server of two versions do not talk. Nor do they if a method that
///   the client has is another one at the server: names and types as written count, not what is inside of your types.
///
/// What travels must be owned:
/// ```compile_fail
/// #[farcall::service]
/// trait Greeter {
///     fn hello(&self, name: &str) -> Result<String, String>;
/// }
/// ```
///
/// Two methods cannot have one number:
/// ```compile_fail
/// #[farcall::service]
/// trait Greeter {
///     #[method(2)]
///     fn hello(&self) -> Result<String, String>;
///     #[method(2)]
///     fn bye(&self) -> Result<String, String>;
/// }
/// ```
///
/// A method may fail, and says how:
/// ```compile_fail
/// #[farcall::service]
/// trait Greeter {
///     fn hello(&self) -> String;
/// }
/// ```
///
/// What has no form as bytes cannot be a value:
/// ```compile_fail
/// #[farcall::service]
/// trait Greeter {
///     fn hello(&self) -> Result<std::thread::Thread, String>;
/// }
/// ```
///
/// A service is shared by threads:
/// ```compile_fail
/// #[farcall::service]
/// trait Greeter {
///     fn hello(&self) -> Result<String, String>;
/// }
/// struct Alone(std::rc::Rc<u8>);
/// impl Greeter for Alone {
///     fn hello(&self) -> Result<String, String> {
///         Ok(String::new())
///     }
/// }
/// ```
#[cfg(feature = "service")]
pub use farcall_service_macros::service;
#[cfg(feature = "softnic")]
pub use farcall_softnic::SoftNic;

#[cfg(feature = "binding")]
pub mod binding;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(feature = "kv")]
pub mod kv;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "rpc")]
pub mod rpc;
#[cfg(feature = "select")]
pub mod select;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "stream")]
pub mod stream;
pub mod verbs;

/// The counters of a process that uses this library, alive or dead.
#[cfg(feature = "stats")]
pub mod stats {
    pub use farcall_stats::{
        BlockReport, FlightRecord, Histogram, PairWay, Report, StatsError, Why, prometheus, read_all,
        read_pid,
    };
}

/// The examples of README.md, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the tour, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tour.md")]
struct Tour;

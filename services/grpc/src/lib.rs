//! gRPC without HTTP/2: services and clients that tonic generates, over byte streams in registered memory.
//!
//! Generated code stays as it is; only what it is given changes. A generated client is made from a [`Channel`] instead
//! of `tonic::transport::Channel`, a generated server is served by a [`Server`] instead of `tonic::transport::Server`.
//! Unary calls and all kinds of streaming, metadata, trailers, status with details, deadlines, cancellation,
//! compression, interceptors, tower layers, health and reflection work as over HTTP/2.
//!
//! * [`Channel`], [`Server`], [`Services`]: the two ends.
//! * [`frame`]: what goes over the stream. A unary call is one frame each way.
//! * `http2`: a connector and incoming connections for programs that keep HTTP/2.
//!
//! Nothing is encrypted: there is no TLS here. Between hosts it needs an RNIC.
//!
//! # Who runs what
//!
//! Each connection has one task. A server's polls a method's future once, in place: most unary calls are answered then
//! and there. What waits becomes a task of its own. Who sends writes into the stream at once if there is room.
//!
//! # Memory
//!
//! A call's bytes that nobody reads fill its window ([`GrpcOptions::window_bytes`]); its peer stops there, and other
//! calls go on. So a connection keeps at most [`GrpcOptions::calls_max`] windows and 16 KiB of metadata for each call, at
//! a client 16 KiB of trailers, too; a server's methods that were given up and have not ended yet count, and may be as
//! many again. It keeps at most 256 paths of 1 KiB. A server has at most [`GrpcOptions::connections_max`] connections.
//!
//! A message that has not come whole is kept by tonic, up to its limit (`max_decoding_message_size`, 4 MiB).

#![forbid(unsafe_code)]

mod body;
mod calls;
mod client;
mod connection;
mod deadline;
pub mod frame;
#[cfg(feature = "http2")]
pub mod http2;
mod message;
mod options;
mod pump;
mod server;

pub use body::IncomingBody;
pub use client::{Channel, ResponseFuture};
pub use http::uri::PathAndQuery;
pub use options::GrpcOptions;
pub use server::{DirectMethods, Server, Services};

/// Where a request came from: an extension of each request at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub std::net::SocketAddr);

//! gRPC without HTTP/2: services and clients that tonic generates, over byte streams in registered memory.
//!
//! Generated code is used unchanged; only its transport differs. A generated client is created from a [`Channel`]
//! instead of `tonic::transport::Channel`, and a generated server is served by a [`Server`] instead of
//! `tonic::transport::Server`. Unary calls and all kinds of streaming, metadata, trailers, status with details,
//! deadlines, cancellation, compression, interceptors, tower layers, health and reflection work as over HTTP/2.
//!
//! * [`Channel`], [`Server`], [`Services`]: the two ends.
//! * [`frame`]: the frames on the stream. A unary call is one frame in each direction.
//! * `http2`: a connector and incoming connections for programs that continue to use HTTP/2.
//!
//! There is no TLS: data is not encrypted. Between hosts it needs an RNIC.
//!
//! # Tasks
//!
//! Each connection has one task. A server's task polls the future of a method once in place: most unary calls complete
//! in this poll. A future that waits is spawned as a task of its own. The task that sends a message writes it directly
//! into the stream if there is space.
//!
//! # Memory
//!
//! Unread bytes of a call fill its window ([`GrpcOptions::window_bytes`]). When it is full the peer stops sending on
//! that call; other calls continue. A connection therefore stores at most [`GrpcOptions::calls_max`] windows and 16
//! KiB of metadata per call; at a client also 16 KiB of trailers per call. At a server, methods that are still running
//! after their calls were cancelled count in addition, up to the same number. A connection stores at most 256 paths of
//! 1 KiB. A server has at most [`GrpcOptions::connections_max`] connections.
//!
//! Incomplete messages are stored by tonic, up to its limit (`max_decoding_message_size`, 4 MiB).

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

/// Address of the client: an extension of each request at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub std::net::SocketAddr);

//! gRPC without HTTP/2: services and clients that tonic generates, over byte streams in registered memory.
//!
//! - A generated client is made from a [`Channel`], a generated server is served by a [`Server`]; [`Services`] holds
//!   several of them.
//! - A [`Nic`] is an open device: `Nic::open(&SoftNic::new())`.
//!
//! Generated code needs `tonic` with feature `codegen`, and nothing of its transport.

pub use farcall_grpc::{Channel, GrpcOptions, IncomingBody, PeerAddress, ResponseFuture, Server, Services};

/// An open device with what every connection needs.
pub use farcall_link::Nic;

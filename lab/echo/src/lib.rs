//! The service that tests and measurements of gRPC call: one method of each kind.

#![forbid(unsafe_code)]

/// What tonic and prost generate, unchanged.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("farcall.echo.v1");

    /// Describes the service, for reflection.
    pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("echo");
}

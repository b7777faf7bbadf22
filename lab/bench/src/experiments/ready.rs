//! Message of a server process once it serves.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Message of a server on standard output, as one line of JSON, once it serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Kind of service: `kv` or `rpc`.
    pub serving: String,
    /// Process id of the server.
    pub pid: u32,
    /// Addresses of memcached front ends over TCP.
    #[serde(default)]
    pub tcp: Vec<String>,
    /// Paths of memcached front ends over Unix sockets.
    #[serde(default)]
    pub unix: Vec<PathBuf>,
    /// Address where RPC clients connect.
    #[serde(default)]
    pub rpc: Option<String>,
    /// Address at which Prometheus reads metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

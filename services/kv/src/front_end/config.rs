//! The limits of front ends.

/// Limits of the front ends.
#[derive(Debug, Clone)]
pub struct FrontEndConfig {
    /// Maximum number of open connections of all threads; further ones receive an error and are closed.
    pub connections_max: u64,
    /// Maximum memory for the buffers of all connections, in bytes: incomplete commands and unsent replies. Each
    /// thread has an equal share. While more than half of it is in use, commands of a client with 64 KiB of unsent
    /// replies are not read. Above the limit, the connection with the largest buffers is closed.
    pub buffers_max_bytes: usize,
    /// Length of the buffer for one read, in bytes; one per thread.
    pub read_buffer_bytes: usize,
    /// Start time of the server, in milliseconds of the partitions' clock, from which `stats` computes the uptime.
    pub started_ms: u64,
}

impl Default for FrontEndConfig {
    fn default() -> Self {
        FrontEndConfig {
            connections_max: 4096,
            buffers_max_bytes: 64 << 20,
            read_buffer_bytes: 256 << 10,
            started_ms: 0,
        }
    }
}

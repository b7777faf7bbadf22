//! The limits of front ends.

/// How front ends behave.
#[derive(Debug, Clone)]
pub struct FrontEndConfig {
    /// Connections open at a time, over all threads; further ones are told so and closed.
    pub connections_max: u64,
    /// Memory of the buffers of all connections, in bytes: commands that came in part, replies that were not taken.
    /// Each thread has an equal share. From half of it on, a client that has 64 KiB of replies to take is not read
    /// from; above it, the connection that holds most is closed.
    pub buffers_max_bytes: usize,
    /// The size of the buffer one read fills, in bytes; one per thread.
    pub read_buffer_bytes: usize,
    /// When the server started, in milliseconds of the partitions' clock; `stats` tells the uptime by it.
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

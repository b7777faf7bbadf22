//! All limits and knobs in one place.

use std::time::Duration;

use farcall_link::{Geometry, Plan};

/// Limits of a server thread.
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// Connections at once.
    pub connections_max: usize,
    /// Largest numbers a client may ask for.
    pub geometry_max: Geometry,
    /// Messages a client may have in flight: the credits it is given. Never more than its window.
    pub credits: u16,
    /// The longest request, in bytes.
    pub request_bytes_max: u32,
    /// The longest result, in bytes.
    pub result_bytes_max: u32,
    /// Bytes of results kept for one client beyond its slots; calls that come while it holds more are not executed.
    pub retained_bytes_max: usize,
    /// Messages of one connection taken in before the next has its turn.
    pub burst: u32,
    /// How long a session outlives its connection.
    pub session_linger: Duration,
    /// Sessions without a connection that are kept at most; the oldest go first.
    pub sessions_parked_max: usize,
    /// How long a draining server goes on answering (with "going away") after everything that had come was finished.
    pub drain_grace: Duration,
    /// How many server threads there are, for clients to choose from.
    pub threads: u16,
    /// Which of them this is.
    pub thread: u16,
    /// Whether messages carry a checksum even where placement is in order.
    pub checksum: bool,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            connections_max: 1_024,
            geometry_max: Geometry {
                window: 256,
                request_slot_bytes: 64 << 10,
                response_slot_bytes: 64 << 10,
            },
            credits: 256,
            request_bytes_max: 16 << 20,
            result_bytes_max: 16 << 20,
            retained_bytes_max: 64 << 20,
            burst: 16,
            session_linger: Duration::from_secs(10),
            sessions_parked_max: 256,
            drain_grace: Duration::from_millis(20),
            threads: 1,
            thread: 0,
            checksum: false,
        }
    }
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct CallerConfig {
    /// The point of the design space, with the slots wished for.
    pub plan: Plan,
    /// Which server thread to connect to.
    pub thread: u16,
    /// READs that may fail in one call before it counts as slow (R).
    pub fetch_retries_max: u32,
    /// Bytes of one READ (F).
    pub fetch_bytes: u32,
    /// Whether R and F follow the calls: sampled while running, chosen by enumeration.
    pub tune_while_running: bool,
    /// Consecutive slow calls of one method before it turns to server-reply, and quick ones before it turns back.
    pub switch_after: u8,
    /// How long to wait for a response before waking the server; doubles each time.
    pub kick_after: Duration,
    /// Whether to ask for a wake-up with every response: for clients that sleep rather than poll.
    pub notify: bool,
    /// The longest result taken, in bytes.
    pub result_bytes_max: u32,
    /// Whether messages carry a checksum even where placement is in order.
    pub checksum: bool,
}

impl Default for CallerConfig {
    fn default() -> Self {
        Self {
            plan: Plan::default(),
            thread: 0,
            fetch_retries_max: 32,
            fetch_bytes: 256,
            tune_while_running: true,
            switch_after: 2,
            kick_after: Duration::from_micros(50),
            notify: false,
            result_bytes_max: 16 << 20,
            checksum: false,
        }
    }
}

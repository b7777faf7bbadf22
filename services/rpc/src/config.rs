//! Limits and options of both endpoints.

use std::time::Duration;

use farcall_link::bootstrap::Hello;
use farcall_link::{Geometry, PRESETS, Plan, Preset};

/// Declares a struct of options: each field with its default, and a chainable setter of the same name.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident {
            $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr,)*
            $(; $($(#[$own_doc:meta])* $own:ident: $own_type:ty = $own_default:expr,)*)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $Name {
            $($(#[$doc])* pub $field: $type,)*
            $($($(#[$own_doc])* pub $own: $own_type,)*)?
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($field: $default,)* $($($own: $own_default,)*)? }
            }
        }

        impl $Name {
            $($(#[$doc])*
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })*
        }
    };
}
pub(crate) use options;

options! {
    /// Limits of a server thread.
    pub struct ResponderConfig {
        /// The presets offered; a client that requests another one is refused.
        presets: Vec<&'static Preset> = PRESETS.iter().collect(),
        /// Maximum number of concurrent connections.
        connections_max: usize = 1_024,
        /// Largest window and slot sizes that a client may request.
        geometry_max: Geometry = Geometry {
            window: 256,
            request_slot_bytes: 64 << 10,
            response_slot_bytes: 64 << 10,
        },
        /// Credits of a client: the number of messages that it may have in flight. Limited to its window.
        credits: u16 = 256,
        /// The longest request, in bytes.
        request_bytes_max: u32 = 16 << 20,
        /// The longest result, in bytes.
        result_bytes_max: u32 = 16 << 20,
        /// Maximum bytes of results stored for one client in addition to its slots. While it holds more, further calls
        /// are not executed.
        retained_bytes_max: usize = 64 << 20,
        /// Maximum bytes of such results, and of partially received requests, for all clients of the thread. Calls
        /// that would exceed it are not executed.
        buffers_bytes_max: usize = 256 << 20,
        /// Maximum number of concurrent deferred calls of one client; a handler that would defer more is refused.
        deferred_of_client_max: usize = 4_096,
        /// Maximum number of deferred calls of all clients of the thread. A call counts until its answer is collected
        /// and its token is dropped.
        deferred_max: usize = 65_536,
        /// How long a draining server waits for deferred answers, and for clients to collect them.
        deferred_grace: Duration = Duration::from_secs(10),
        /// Maximum bytes of the slots of all sessions of the thread. Sessions without a connection are discarded
        /// first.
        slots_bytes_max: usize = 1 << 30,
        /// Maximum number of messages accepted from one connection before the next connection is served.
        burst: u32 = 16,
        /// How long a session outlives its connection.
        session_linger: Duration = Duration::from_secs(10),
        /// Maximum number of sessions without a connection; the oldest are discarded first.
        detached_sessions_max: usize = 256,
        /// How long a draining server continues to reply (with "going away") after all received calls have been
        /// finished.
        drain_grace: Duration = Duration::from_millis(20),
        /// Number of server threads that clients can choose from.
        threads: u16 = 1,
        /// Index of this thread.
        thread: u16 = 0,
        /// Whether messages carry a checksum even where placement is in order.
        checksum: bool = false,
    }
}

options! {
    /// Options of a client.
    pub struct CallerConfig {
        /// The plan, including the requested slots.
        plan: Plan = Plan::default(),
        /// Which server thread to connect to; [`Hello::ANY_THREAD`]: the server chooses one with few connections.
        thread: u16 = Hello::ANY_THREAD,
        /// READs that may fail in one call before it counts as slow (R).
        fetch_retries_max: u32 = 32,
        /// Bytes of one READ (F).
        fetch_bytes: u32 = 256,
        /// Whether R and F are adapted: results are sampled while calls run, and R and F are chosen by enumeration.
        tune_while_running: bool = true,
        /// Number of consecutive slow calls of a method before it switches to server-reply, and of quick calls before
        /// it switches back.
        switch_after: u8 = 2,
        /// How long to wait for a response before waking the server; doubles each time.
        kick_after: Duration = Duration::from_micros(50),
        /// Over UC and UD: time without a response, while calls are outstanding, after which the connection counts as
        /// lost. A call that takes longer costs a reconnect, which waits for the server; increase the value if such
        /// calls are common.
        silence_max: Duration = Duration::from_secs(5),
        /// Whether to request a wake-up with every response: for clients that sleep rather than poll.
        notify: bool = false,
        /// Maximum length of a result in bytes.
        result_bytes_max: u32 = 16 << 20,
        /// Whether messages carry a checksum even where placement is in order.
        checksum: bool = false,
    }
}

//! What happened at a bootstrap port, in numbers.

use std::sync::atomic::{AtomicU32, Ordering};

farcall_stats::counters! {
    /// Counters of one bootstrap port. Its thread is the only writer; `farcall stats` reads them, also after it died.
    pub struct Counters {
        /// Connections whose handshake might begin.
        admitted,
        /// Clients, and others, that were refused: when they connected, in their handshake, by a server thread, or later
        /// because they broke the protocol. The log says which, and why.
        refused,
    }
}

/// A name for the counters of one more bootstrap port of this process.
pub(super) fn next_label() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bootstrap port {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

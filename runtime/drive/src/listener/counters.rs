//! Counters of a bootstrap port.

use std::sync::atomic::{AtomicU32, Ordering};

farcall_stats::counters! {
    /// Counters of one bootstrap port. Its thread is the only writer; `farcall stats` reads them, also after the
    /// process has exited.
    pub struct Counters {
        /// Connections admitted to a handshake.
        admitted,
        /// Clients refused: on connecting, in the handshake, by a server thread, or later for breaking the protocol.
        /// The log names each client and the reason.
        refused,
    }
}

/// Returns a label for the counters of another bootstrap port of this process.
pub(super) fn next_label() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bootstrap port {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

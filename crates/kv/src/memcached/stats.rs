//! The `stats` reply, under memcached's names where memcached has one.

use super::text::push_number;
use crate::store::Stats;

/// What the statistics say about the server around the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// When the server started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Server threads, one partition each.
    pub threads: u32,
    /// Connections open now.
    pub connections: u64,
    /// Connections ever accepted.
    pub connections_total: u64,
    /// Connections refused because the limit was reached.
    pub connections_refused: u64,
    /// The limit.
    pub connections_max: u64,
}

/// Writes all statistics and `END`.
pub(crate) fn render(stats: &Stats, info: &ServerInfo, now_ms: u64, out: &mut Vec<u8>) {
    let text = |name: &str, value: &str, out: &mut Vec<u8>| {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    };
    text("version", VERSION, out);
    let numbers = [
        ("pid", u64::from(std::process::id())),
        ("uptime", now_ms.saturating_sub(info.started_ms) / 1000),
        ("time", now_ms / 1000),
        ("pointer_size", u64::from(usize::BITS)),
        ("max_connections", info.connections_max),
        ("curr_connections", info.connections),
        ("total_connections", info.connections_total),
        ("rejected_connections", info.connections_refused),
        ("threads", u64::from(info.threads.max(1))),
    ];
    for (name, number) in numbers.into_iter().chain(store_figures(stats)) {
        out.extend_from_slice(b"STAT ");
        out.extend_from_slice(name.as_bytes());
        out.push(b' ');
        push_number(out, number);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"END\r\n");
}

/// What a store counted, under memcached's names where memcached has one.
#[must_use]
pub fn store_figures(stats: &Stats) -> [(&'static str, u64); 29] {
    let touches = (stats.touch_hits, stats.touch_misses);
    [
        ("cmd_get", stats.get_hits + stats.get_misses),
        ("cmd_set", stats.puts),
        ("cmd_flush", stats.flushes),
        ("cmd_touch", touches.0 + touches.1),
        ("get_hits", stats.get_hits),
        ("get_misses", stats.get_misses),
        ("get_expired", stats.expired),
        ("delete_misses", stats.delete_misses),
        ("delete_hits", stats.delete_hits),
        ("counter_hits", stats.counter_hits),
        ("counter_misses", stats.counter_misses),
        ("cas_misses", stats.cas_misses),
        ("cas_hits", stats.cas_hits),
        ("cas_badval", stats.cas_mismatches),
        ("touch_hits", touches.0),
        ("touch_misses", touches.1),
        ("store_too_large", stats.too_large),
        ("store_no_memory", stats.out_of_memory),
        ("puts_not_stored", stats.puts_not_stored),
        ("limit_maxbytes", stats.limit_bytes),
        ("reserved_bytes", stats.reserved_bytes),
        ("bytes", stats.item_bytes),
        ("curr_items", stats.items),
        ("total_items", stats.items_total),
        ("hash_slots", stats.slots),
        ("evictions", stats.evictions.total()),
        ("evictions_bucket_full", stats.evictions.bucket_full),
        ("evictions_memory_full", stats.evictions.memory_full),
        ("reclaimed", stats.expired),
    ]
}

/// What `version` answers: the crate's own, behind the protocol level it speaks so that clients which compare
/// versions use the meta commands.
pub(crate) const VERSION: &str = concat!("1.6.18-farcall-", env!("CARGO_PKG_VERSION"));

/// The whole `version` reply.
pub(super) const VERSION_LINE: &[u8] =
    concat!("VERSION 1.6.18-farcall-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

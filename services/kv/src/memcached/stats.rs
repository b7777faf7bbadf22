//! The `stats` reply, with memcached's names where memcached has the same value.

use super::text::push_number;
use crate::key::KEY_MAX_BYTES;
use crate::store::{ITEM_OVERHEAD_BYTES, Prefixes, Stats, WallClock};

/// State of the server outside the store for the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Start time of the server in milliseconds of the partitions' clock.
    pub started_ms: u64,
    /// Offset of the wall clock from that clock.
    pub wall: WallClock,
    /// Number of server threads, one partition each.
    pub threads: u32,
    /// Number of open connections.
    pub connections: u64,
    /// Number of accepted connections.
    pub connections_total: u64,
    /// Number of connections refused because the limit was reached.
    pub connections_refused: u64,
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Maximum length of a value in bytes.
    pub value_max_bytes: usize,
    /// `true` if items are evicted when memory is full.
    pub evicts: bool,
    /// `true` if commands are counted by the prefix of their keys.
    pub counts_prefixes: bool,
    /// Number of connections closed because the buffers of all used too much memory.
    pub connections_shed: u64,
    /// Memory of the buffers of all connections in bytes.
    pub buffer_bytes: u64,
    /// Number of bytes received from all connections.
    pub read_bytes: u64,
    /// Number of bytes sent to all connections.
    pub written_bytes: u64,
}

impl ServerInfo {
    /// Returns the size that memcached limits: the value with the longest key and all overhead.
    fn item_max_bytes(&self) -> u64 {
        (self.value_max_bytes + KEY_MAX_BYTES + ITEM_OVERHEAD_BYTES) as u64
    }
}

/// Kind of a `stats` report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// All counters.
    General,
    /// Configuration of the server.
    Settings,
    /// The items, reported as those of memcached's first slab class; there are no others.
    Items,
    /// The memory, also as one slab class. A chunk holds one item.
    Slabs,
}

impl Report {
    /// Writes the report and `END`.
    pub(crate) fn render(self, stats: &Stats, info: &ServerInfo, now_ms: u64, out: &mut Vec<u8>) {
        match self {
            Report::General => {
                push_text("version", VERSION, out);
                push_processor_times(out);
                push_numbers(&general(info, now_ms), out);
                push_numbers(&stats.named(), out);
                push_numbers(&NONE_HERE, out);
            }
            Report::Settings => settings(stats, info, out),
            Report::Items | Report::Slabs if stats.items == 0 => {}
            Report::Items => push_numbers(
                &[
                    ("items:1:number", stats.items),
                    ("items:1:age", 0),
                    ("items:1:mem_requested", stats.item_bytes),
                    ("items:1:evicted", stats.evictions()),
                    ("items:1:outofmemory", stats.out_of_memory),
                    ("items:1:reclaimed", stats.expired),
                ],
                out,
            ),
            Report::Slabs => push_numbers(
                &[
                    ("1:chunk_size", info.item_max_bytes()),
                    ("1:chunks_per_page", 1),
                    ("1:total_pages", stats.items),
                    ("1:total_chunks", stats.items),
                    ("1:used_chunks", stats.items),
                    ("1:free_chunks", 0),
                    ("1:free_chunks_end", 0),
                    ("1:get_hits", stats.get_hits),
                    ("1:cmd_set", stats.puts_tried()),
                    ("1:delete_hits", stats.delete_hits),
                    ("1:incr_hits", stats.incr_hits),
                    ("1:decr_hits", stats.decr_hits),
                    ("1:cas_hits", stats.cas_hits),
                    ("1:cas_badval", stats.cas_mismatches),
                    ("1:touch_hits", stats.touch_hits),
                ],
                out,
            ),
        }
        if self == Report::General {
            push_numbers(&[("total_malloced", stats.reserved_bytes)], out);
        }
        if self == Report::Slabs {
            push_numbers(
                &[("active_slabs", u64::from(stats.items > 0)), ("total_malloced", stats.reserved_bytes)],
                out,
            );
        }
        out.extend_from_slice(b"END\r\n");
    }
}

/// Counters of memcached that have no counterpart here: there is no crawler, no LRU list in which items move, and no
/// limit at which a listener pauses. Programs that read the statistics expect them.
const NONE_HERE: [(&str, u64); 11] = [
    ("accepting_conns", 1),
    ("listen_disabled_num", 0),
    ("conn_yields", 0),
    ("auth_cmds", 0),
    ("auth_errors", 0),
    ("lru_crawler_starts", 0),
    ("crawler_items_checked", 0),
    ("crawler_reclaimed", 0),
    ("moves_to_cold", 0),
    ("moves_to_warm", 0),
    ("moves_within_lru", 0),
];

/// Writes the processor time of this process in the format of getrusage(2), with the resolution of the kernel's clock
/// ticks.
fn push_processor_times(out: &mut Vec<u8>) {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let [user, system] = processor_ticks().unwrap_or_default();
    for (name, ticks) in [("rusage_user", user), ("rusage_system", system)] {
        let (seconds, rest) = (ticks / ticks_per_second, ticks % ticks_per_second);
        push_text(name, &format!("{seconds}.{:06}", rest * 1_000_000 / ticks_per_second), out);
    }
}

/// Returns `utime` and `stime` of proc(5).
fn processor_ticks() -> Option<[u64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may contain spaces; the third field follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

fn general(info: &ServerInfo, now_ms: u64) -> [(&'static str, u64); 13] {
    [
        ("pid", u64::from(std::process::id())),
        ("uptime", now_ms.saturating_sub(info.started_ms) / 1000),
        ("time", info.wall.to_unix_ms(now_ms) / 1000),
        ("pointer_size", u64::from(usize::BITS)),
        ("max_connections", info.connections_max),
        ("curr_connections", info.connections),
        ("total_connections", info.connections_total),
        ("rejected_connections", info.connections_refused),
        ("response_obj_oom", info.connections_shed),
        ("read_buf_bytes", info.buffer_bytes),
        ("bytes_read", info.read_bytes),
        ("bytes_written", info.written_bytes),
        ("threads", u64::from(info.threads.max(1))),
    ]
}

fn settings(stats: &Stats, info: &ServerInfo, out: &mut Vec<u8>) {
    push_numbers(
        &[
            ("maxbytes", stats.limit_bytes),
            ("maxconns", info.connections_max),
            ("num_threads", u64::from(info.threads.max(1))),
            ("item_size_max", info.item_max_bytes()),
            ("udpport", 0),
            ("verbosity", 0),
        ],
        out,
    );
    for (name, value) in [
        ("evictions", if info.evicts { "on" } else { "off" }),
        ("cas_enabled", "yes"),
        ("flush_enabled", "yes"),
        ("dump_enabled", "yes"),
        ("detail_enabled", if info.counts_prefixes { "yes" } else { "no" }),
        ("stat_key_prefix", ":"),
        ("binding_protocol", "ascii"),
        ("auth_enabled_sasl", "no"),
        ("auth_enabled_ascii", "no"),
        ("shutdown_command", "no"),
        ("slab_reassign", "no"),
        ("lru_crawler", "no"),
        ("track_sizes", "no"),
        ("hash_algorithm", "rapidhash"),
    ] {
        push_text(name, value, out);
    }
}

/// Writes the counts as `stats detail dump` does.
pub(crate) fn list_prefixes(prefixes: &Prefixes, out: &mut Vec<u8>) {
    for (prefix, counts) in prefixes.iter() {
        out.extend_from_slice(b"PREFIX ");
        out.extend_from_slice(prefix);
        for (name, number) in [
            (" get ", counts.gets),
            (" hit ", counts.hits),
            (" set ", counts.sets),
            (" del ", counts.deletes),
        ] {
            out.extend_from_slice(name.as_bytes());
            push_number(out, number);
        }
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"END\r\n");
}

fn push_text(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in ["STAT ", name, " ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn push_numbers(numbers: &[(&str, u64)], out: &mut Vec<u8>) {
    for &(name, number) in numbers {
        let mut digits = [0; 20];
        let digits = crate::store::format_decimal(number, &mut digits);
        for part in [&b"STAT "[..], name.as_bytes(), b" ", digits, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// Text of the `version` reply: the version of the package, preceded by the supported protocol level, so that clients
/// which compare versions use the meta commands.
pub(crate) const VERSION: &str = concat!("1.6.18-farcall-", env!("CARGO_PKG_VERSION"));

/// The complete `version` reply.
pub(super) const VERSION_LINE: &[u8] =
    concat!("VERSION 1.6.18-farcall-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

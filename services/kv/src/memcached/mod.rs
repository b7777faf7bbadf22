//! memcached's text protocol and meta protocol as a session without socket, clock or thread.
//!
//! A [`Session`] reads bytes as they arrive, in segments of any length, and converts them into operations on a
//! [`Target`]: one partition directly, or the partitions of several threads (see [`crate::front_end`]).
//!
//! # Supported commands
//! `get` `gets` `gat` `gats` `set` `add` `replace` `append` `prepend` `cas` `delete` `incr` `decr` `touch` `flush_all`
//! `version` `verbosity` `stats` `quit`, with `noreply`; `mn` `mg` `ms` `md` `ma` `me` with the flags of memcached 1.6:
//! `b c f h k l O q s t u v N R T` (mg), `b c C F I k O q T M` (ms), `b C I k O q T` (md), `b C N J D T M q t c v O k`
//! (ma); a command ignores the flags of the others, `P` and `L`.
//! `tests/memcached_differential.rs` compares the replies with those of memcached 1.6.18.
//!
//! # Refused commands and differences
//! - The binary protocol is refused by a binary response, and the connection is closed. The server does not listen on
//!   UDP: source addresses can be forged, so a server that replies could be used for attacks on other hosts.
//! - `shutdown` is refused as by a memcached that does not permit it. SASL, `lru`, `watch`, and `lru_crawler` except
//!   `metadump`: `ERROR`. Meta flag `E` (explicit version) and unknown flags: `CLIENT_ERROR invalid flag`.
//! - `verbosity` and `slabs automove` are accepted and ignored. `slabs reassign` is refused. `cache_memlimit` changes
//!   the memory for items, but never above the value at the start; no memory is returned to the system.
//! - `stats cachedump` lists items of the connection's partition only.
//! - `stats detail` counts at most 1,024 prefixes in each partition; further ones are counted together as `*`. Meta
//!   commands are not counted, as in memcached 1.6.18.
//! - There are no slab classes: `stats items`, `stats slabs` and `lru_crawler metadump` show all items in class 1.
//! - After a malformed storage line with the correct number of fields, the data block is skipped and never executed.
//!   So is the rest of the line after a data block that is longer than announced.
//! - Numbers have no sign and do not wrap: memcached accepts `+1`, stores 4294967296 as flags 0, and treats a time
//!   beyond 2^31 as one in the past. A stored number has no sign either.
//! - The reply to a line of more than 2048 bytes that is not a retrieval is `ERROR`, whether it arrived in one segment
//!   or not (memcached closes the connection if it did not). If it is the request line of an HTTP request, the
//!   connection is closed, as for a shorter one. A zero byte does not end a line.
//! - A returned key has the form of the request, whereas memcached uses the form in which the item was stored. Base64
//!   contains only characters of its alphabet, and ends with its padding.
//! - An opaque token that is too long is refused before any change. `mg` with `N` does not create an item that has
//!   expired.
//! - `me` reports the remaining seconds as a positive number; class and size are those of this store.
//! - Keys of a `get` of more than 2048 bytes are processed as they arrive, so an invalid key ends a reply that may
//!   already contain values. In a shorter line an invalid key causes a refusal of all keys, and none is counted.

mod binary;
mod change;
mod classic;
pub mod client;
mod command;
mod dump;
mod meta;
mod meta_flags;
mod refusal;
mod session;
mod stats;
mod target;
mod text;

pub use change::Change;
pub use command::Retrieval;
pub use session::{LINE_MAX_BYTES, Session};
pub use stats::{Report, ServerInfo};
pub use target::{ALL_LISTED, Direct, KeyedCommand, Op, Target};
pub use text::Exptime;

#[cfg(feature = "server")]
pub(crate) use command::parse;
#[cfg(feature = "server")]
pub(crate) use {
    classic::get as execute_get, dump::execute as execute_dump, dump::execute_short as execute_short_dump,
    stats::list_prefixes, target::execute, text::push_number,
};

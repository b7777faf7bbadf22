//! memcached's text protocol and meta protocol as a session without socket, clock or thread.
//!
//! A [`Session`] reads bytes as they come, in pieces of any size, and turns them into operations on a [`Target`]:
//! directly one partition, or the partitions of several threads (see [`crate::front_end`]).
//!
//! # What is spoken
//! `get` `gets` `gat` `gats` `set` `add` `replace` `append` `prepend` `cas` `delete` `incr` `decr` `touch` `flush_all`
//! `version` `verbosity` `stats` `quit`, with `noreply`; `mn` `mg` `ms` `md` `ma` `me` with the flags of memcached 1.6:
//! `b c f h k l O q s t u v N R T` (mg), `b c C F I k O q T M` (ms), `b C I k O q T` (md), `b C N J D T M q t c v O k`
//! (ma); a command ignores the flags of the others, `P` and `L`.
//! `tests/memcached_differential.rs` compares the replies with those of memcached 1.6.18.
//!
//! # What is refused or differs
//! - The binary protocol is refused in its own words, and the connection closed. UDP is not listened on: its senders
//!   can be forged, and a server that answers them serves attacks on others.
//! - `shutdown` is refused as by a memcached that does not allow it. SASL, `lru`, `watch`, `lru_crawler` but for
//!   `metadump`: `ERROR`. Meta flag `E` (explicit version) and unknown flags: `CLIENT_ERROR invalid flag`.
//! - `verbosity` and `slabs automove` are accepted and ignored. `slabs reassign` is refused. `cache_memlimit` lowers
//!   what the items may take, but never above what the server started with; no memory is given back to the system.
//! - `stats cachedump` lists items of the connection's partition only.
//! - `stats detail` counts at most 1,024 prefixes in each partition; further ones are counted together, as `*`. As in
//!   memcached 1.6.18, meta commands are not counted.
//! - There are no slab classes: `stats items`, `stats slabs` and `lru_crawler metadump` show all items in class 1.
//! - After a malformed storage line with the right number of fields, the data block is skipped, never executed; so is
//!   the rest of a line behind a data block that is longer than announced.
//! - Numbers have no sign and do not wrap: memcached takes `+1`, stores 4294967296 as flags 0, and a time beyond 2^31 as
//!   one in the past. A stored number has no sign either.
//! - A line of more than 2048 bytes that is no retrieval is answered with `ERROR`, whether it came in one piece or not
//!   (memcached closes the connection if it did not). If it is the first line of a request of HTTP, the connection is
//!   closed, as at a shorter one. A zero byte ends no line.
//! - A key that is returned has the form in which the request gave it: memcached remembers the form in which the item was
//!   stored. Base64 has no characters but its own, and ends with its padding.
//! - An opaque token that is too long is refused before anything is changed. `mg` with `N` makes no item for the past.
//! - `me` reports the remaining seconds as a positive number; its class and size are those of this store.
//! - Keys of a `get` of more than 2048 bytes are served as they arrive, so an illegal key ends a reply that may already
//!   hold values. In a shorter line an illegal key refuses all, and none is counted.

mod admin;
mod binary;
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

pub use command::Retrieval;
pub use session::{LINE_MAX_BYTES, Session};
pub use stats::{Report, ServerInfo};
pub use target::{ALL_LISTED, Change, Direct, KeyedCommand, Op, Target};
pub use text::Exptime;

#[cfg(feature = "server")]
pub(crate) use command::parse;
#[cfg(feature = "server")]
pub(crate) use {
    classic::get as execute_get, dump::execute as execute_dump, dump::execute_short as execute_short_dump,
    stats::list_prefixes, target::execute, text::push_number,
};

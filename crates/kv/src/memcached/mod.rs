//! memcached's text protocol and meta protocol as a session without socket, clock or thread.
//!
//! A [`Session`] reads bytes as they come, in pieces of any size, and turns them into operations on a [`Target`]:
//! directly one partition, or the partitions of several threads (see [`crate::door`]).
//!
//! # What is spoken
//! `get` `gets` `gat` `gats` `set` `add` `replace` `append` `prepend` `cas` `delete` `incr` `decr` `touch` `flush_all`
//! `version` `verbosity` `stats` `quit`, with `noreply`; `mn` `mg` `ms` `md` `ma` `me` with the flags of memcached 1.6:
//! `b c f h k l O q s t u v N R T` (mg), `b c C F I k O q T M` (ms), `b C I k O q T` (md), `b C N J D T M q t c v O k`
//! (ma); `P` and `L` are accepted and ignored.
//!
//! # What is refused or differs
//! - The binary protocol, UDP, SASL, `slabs`, `lru`, `cache_memlimit`, `shutdown`, `watch`, `lru_crawler`, `stats reset`,
//!   `stats detail`: `ERROR`. Meta flag `E` (explicit version) and unknown flags: `CLIENT_ERROR invalid flag`.
//! - `verbosity` is accepted and ignored. `stats items` and `stats slabs` are empty: there are no slab classes.
//! - A refused `set` leaves the old value in place (memcached removes it when the new one is too large).
//! - After a malformed storage line whose length can be read, the data block is skipped, never executed.
//! - With `b`, a key that is returned stays in base64 and `b` is repeated (memcached 1.6.18 returns the raw key).
//! - `decr` does not pad with spaces. Keys of a long `get` are served as they arrive, so an illegal key ends a reply that
//!   may already hold values.

mod base64;
mod classic;
pub mod client;
mod command;
mod meta;
mod meta_flags;
mod session;
mod stats;
mod target;
mod text;

pub use session::{LINE_MAX_BYTES, Session};
pub use stats::{ServerInfo, store_figures};
pub use target::{Direct, KeyedCommand, Op, Retrieval, Target};
pub use text::Exptime;

pub(crate) use command::parse;
pub(crate) use stats::render as render_stats;
pub(crate) use target::{execute, execute_get};

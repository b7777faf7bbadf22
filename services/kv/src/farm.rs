//! FaRM's key-value store: a GET is one READ of a neighbourhood of six entries, and a second READ if the value is not
//! stored in them.
//!
//! The index is a hopscotch table. A key is in one of the six entries that begin at its own, or, if these are full and
//! none of them can move, in a block of six entries chained to them, which costs a GET another READ. With
//! [`FarmConfig::inline_bytes`] keys and values are in the entries (FaRM-em of the HERD paper), without it they are in
//! extents (FaRM-VAR). PUTs and DELETEs are calls of the preset `server-reply`: the client writes a request into the
//! ring of request slots that the server polls, which is the published circular buffer, and the server executes it.
//!
//! It differs from the published system in four points. Checksums replace the versions at cache-line boundaries, so
//! that no guarantee about the order in which a READ accesses memory is needed. An insertion moves the fewest entries
//! that free one, found by breadth-first search, and not those on the path to the nearest free entry. Blocks are part
//! of the index, one for 32 entries; a chain has at most 16, and a key stays in it when its neighbourhood has a free
//! entry again. A key that is not found costs one more READ, which detects whether entries moved during the lookup.
//! See [`crate::bypass`].
//!
//! ```
//! use farcall_link::Nic;
//! use farcall_kv::farm::{FarmClient, FarmConfig, serve};
//! use farcall_link::Nic;
//! use farcall_rpc::Server;
//! use farcall_softnic::SoftNic;
//!
//! let config = FarmConfig::default().inline_bytes(64);
//! let nic = Nic::open(&SoftNic::new())?;
//! let server = serve(Server::builder(), &nic, config)?;
//! let address = server.address().to_string();
//! let mut store = FarmClient::connect(&nic, &address, FarmClient::options())?;
//! store.put(b"greeting", b"hello")?;
//! let mut value = Vec::new();
//! assert!(store.get(b"greeting", &mut value)?);
//! assert_eq!((&value[..], store.counters().reads), (&b"hello"[..], 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use farcall_link::Nic;
use farcall_rpc::{Server, ServerBuilder, ServerError};

use crate::bypass::{self, BypassClient, Scheme, sealed};
pub use crate::bypass::{BypassConfig as FarmConfig, BypassError as FarmError, ReadCounters};

/// Six adjacent entries may hold a key, all fetched by one READ. PUTs are WRITEs.
#[derive(Debug, Clone, Copy)]
pub struct Farm;

impl sealed::Sealed for Farm {}

impl Scheme for Farm {
    const NAME: &'static str = "farm";
    const GROUPS: u32 = 1;
    const SPAN: u32 = 6;
    const CHAINS: bool = true;
    const CALLS: &'static str = "server-reply";
}

/// A connection to a store.
pub type FarmClient = BypassClient<Farm>;

/// Serves a store with one thread of a new server.
///
/// # Errors
/// If the sizes are invalid, memory cannot be allocated, or the server does not start.
pub fn serve(builder: ServerBuilder, nic: &Nic, config: FarmConfig) -> Result<Server, ServerError> {
    bypass::serve::<Farm>(builder, nic, config)
}

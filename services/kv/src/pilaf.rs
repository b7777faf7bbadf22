//! Pilaf: a store whose GETs are READs of a 3-way cuckoo table and of extents.
//!
//! It differs from the published system in three points. The checksums are 64 bits of rapidhash instead of CRC-64. The
//! lookup of a key that is not found is repeated if entries moved in the meantime, so that no key is missed. A GET
//! that is disturbed too often is made as a call. See [`crate::bypass`].
//!
//! ```
//! use farcall_link::Nic;
//! use farcall_kv::pilaf::{PilafClient, PilafConfig, serve};
//! use farcall_link::Nic;
//! use farcall_rpc::Server;
//! use farcall_softnic::SoftNic;
//!
//! let nic = Nic::open(&SoftNic::new())?;
//! let server = serve(Server::builder(), &nic, PilafConfig::default())?;
//! let address = server.address().to_string();
//! let mut store = PilafClient::connect(&nic, &address, PilafClient::options())?;
//! store.put(b"greeting", b"hello")?;
//! let mut value = Vec::new();
//! assert!(store.get(b"greeting", &mut value)?);
//! assert_eq!((&value[..], store.counters().gets_by_call), (&b"hello"[..], 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use farcall_link::Nic;
use farcall_rpc::{Server, ServerBuilder, ServerError};

use crate::bypass::{self, BypassClient, Scheme, sealed};
pub use crate::bypass::{BypassConfig as PilafConfig, BypassError as PilafError, ReadCounters};

/// Three entries may hold a key, each read separately. PUTs are SENDs. Fast up to a load of three quarters; keys are
/// refused above nine tenths.
#[derive(Debug, Clone, Copy)]
pub struct Pilaf;

impl sealed::Sealed for Pilaf {}

impl Scheme for Pilaf {
    const NAME: &'static str = "pilaf";
    const GROUPS: u32 = 3;
    const SPAN: u32 = 1;
    const CHAINS: bool = false;
    const CALLS: &'static str = "send-send";
}

/// A connection to a store.
pub type PilafClient = BypassClient<Pilaf>;

/// Serves a store with one thread of a new server.
///
/// # Errors
/// If the sizes are invalid, memory cannot be allocated, or the server does not start.
pub fn serve(builder: ServerBuilder, nic: &Nic, config: PilafConfig) -> Result<Server, ServerError> {
    bypass::serve::<Pilaf>(builder, nic, config)
}

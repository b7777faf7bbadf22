//! The server side: PUT, DELETE and, for disturbed clients, GET as calls; and queue pairs over which clients READ.

use std::collections::BTreeMap;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, QpSizes, RemoteRegion, Transport, os_random};
use farcall_rpc::{Call, Handler, HandlerError, Reply, Server, ServerBuilder, ServerError};
use farcall_verbs::{Access, CqInitAttr, Error, RawCq, with_sources};
use serde::{Deserialize, Serialize};

use super::extents::decode_pair;
use super::store::Store;
use super::{BypassConfig, PutError, Scheme};

/// Methods of the service. Requests of all but the first contain a key with a length prefix; a PUT is followed by the
/// value.
pub(super) mod method {
    /// Connects a queue pair for READs. The request is a [`super::QpInfo`], the result an [`super::Opened`].
    pub const OPEN: u16 = 1;
    pub const PUT: u16 = 2;
    /// The result is one byte if the key was removed, otherwise empty.
    pub const DELETE: u16 = 3;
    /// The result is one byte and the value if the key exists, otherwise empty.
    pub const GET: u16 = 4;
}

/// Error codes of the service.
mod refusal {
    pub const MALFORMED: u16 = 1;
    pub const NO_PAIR: u16 = 2;
    pub const INDEX_FULL: u16 = 3;
    pub const EXTENTS_FULL: u16 = 4;
    pub const TOO_LARGE: u16 = 5;
}

/// The parameters that a client needs to READ the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opened {
    pub qp: QpInfo,
    pub index: RemoteRegion,
    pub extents: RemoteRegion,
    /// Number of groups that may hold a key, and number of entries of each.
    pub groups: [u32; 2],
    pub entries: u32,
    pub inline_bytes: u32,
    pub value_max_bytes: u64,
    /// Seed of hashes and checksums.
    pub seed: u64,
}

/// A store as a handler of calls.
pub struct Service<S> {
    pub(super) nic: Nic,
    cq: Box<dyn RawCq>,
    store: Store<S>,
    /// Queue pairs for READs, by the connection over which they were requested. Each connection has one, which ends
    /// with it.
    readers: BTreeMap<u32, Connection>,
}

/// Serves a store with one thread of a new server.
///
/// # Errors
/// If the sizes are invalid, memory cannot be allocated, or the server does not start.
pub fn serve<S: Scheme>(
    builder: ServerBuilder,
    nic: &Nic,
    config: BypassConfig,
) -> Result<Server, ServerError> {
    let own = nic.clone();
    let seed = u64::from_le_bytes(os_random::<8>()?);
    builder
        .threads(1)
        .start_endpoints(nic, move |parts| parts.with(Service::<S>::new(own.clone(), config, seed)?))
}

impl<S: Scheme> Service<S> {
    /// Creates an empty store. `seed` is that of hashes and checksums.
    ///
    /// # Errors
    /// If the sizes are invalid, or memory cannot be allocated.
    pub fn new(nic: Nic, config: BypassConfig, seed: u64) -> Result<Self, Error> {
        let store = Store::new(&nic, config, seed)?;
        // The queue pairs only serve READs, so they generate no completions.
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 1, channel: None })?;
        Ok(Self { nic, cq, store, readers: BTreeMap::new() })
    }

    /// Connects the queue pair of a client, and replaces an earlier one of the same connection.
    pub(super) fn open(&mut self, connection: u32, peer: &QpInfo) -> Result<Opened, Error> {
        self.readers.remove(&connection);
        let reader = self.connect(peer)?;
        let [index, extents] = self.store.regions().map(|region| region.remote());
        let opened = Opened {
            qp: reader.info(&self.nic),
            index,
            extents,
            groups: [S::GROUPS, S::SPAN],
            entries: self.store.layout().entries,
            inline_bytes: self.store.layout().inline_bytes,
            value_max_bytes: self.store.value_max_bytes() as u64,
            seed: self.store.router().seed().0,
        };
        self.readers.insert(connection, reader);
        Ok(opened)
    }

    #[cfg(test)]
    pub(super) fn store(&mut self) -> &mut Store<S> {
        &mut self.store
    }

    fn connect(&self, peer: &QpInfo) -> Result<Connection, Error> {
        self.nic.context().check_owner(peer.gid(), peer.qp_num)?;
        let config = QpSizes {
            send_depth: 1,
            recv_depth: 1,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
        };
        let mut reader = Connection::new(&self.nic, Transport::Rc, &*self.cq, config, None)?;
        reader.connect(&self.nic, peer)?;
        Ok(reader)
    }
}

fn malformed(what: &str) -> HandlerError {
    HandlerError::new(refusal::MALFORMED, what)
}

impl From<PutError> for HandlerError {
    fn from(why: PutError) -> Self {
        let code = match why {
            PutError::IndexFull { .. } => refusal::INDEX_FULL,
            PutError::ExtentsFull { .. } => refusal::EXTENTS_FULL,
            PutError::TooLarge { .. } => refusal::TOO_LARGE,
        };
        Self::new(code, why.to_string())
    }
}

impl<S: Scheme> Handler for Service<S> {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        if call.method() == method::OPEN {
            let peer = postcard::from_bytes(call.payload()).map_err(|_| malformed("not a queue pair"))?;
            let no_pair =
                |why: &dyn std::error::Error| HandlerError::new(refusal::NO_PAIR, with_sources(why));
            let opened = self.open(call.connection(), &peer).map_err(|why| no_pair(&why))?;
            let bytes = postcard::to_allocvec(&opened).map_err(|why| no_pair(&why))?;
            reply.extend_from_slice(&bytes);
            return Ok(());
        }
        let (key, value) =
            decode_pair(call.payload()).ok_or_else(|| malformed("a key shorter than its length"))?;
        let router = self.store.router().clone();
        let key = router.key(key).map_err(|error| malformed(&error.to_string()))?;
        match call.method() {
            method::PUT => self.store.put(&key, value)?,
            _ if !value.is_empty() => return Err(malformed("bytes behind the key")),
            method::DELETE if self.store.delete(&key) => reply.extend_from_slice(&[1]),
            method::DELETE => {}
            method::GET => {
                if let Some(value) = self.store.get(&key) {
                    reply.extend_from_slice(&[1]);
                    reply.extend_from_slice(value);
                }
            }
            method => return Err(HandlerError::unknown_method(method)),
        }
        Ok(())
    }

    fn closed(&mut self, connection: u32) {
        self.readers.remove(&connection);
    }
}

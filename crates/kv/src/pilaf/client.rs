//! A blocking client: GETs by READs, changes by calls.

use farcall_link::Nic;
use farcall_rpc::{CallError, Client, ClientOptions, ConnectError};
use farcall_verbs::Provider;
use thiserror::Error;

use super::extents::encode_pair;
use super::reader::{Look, Lost, ReadCounters, Reader, Unconnected};
use super::service::{Opened, method};
use crate::key::{Key, KeyError, Router};

/// Looks of one GET before it is made as a call. Each takes the time of a PUT, so two in a row are rare.
const LOOKS_MAX: u32 = 16;

/// A request to the store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PilafError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The key cannot be one; nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The call failed, or the store refuses: it is full, for example.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A queue pair for READs cannot be had.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// What answers is no such store.
    #[error(
        "the server does not answer as a pilaf store: {0}; see that client and server are of one version"
    )]
    NoStore(&'static str),
    /// READs fail, over a new connection, too.
    #[error("cannot read the store: {0}; see that the server still runs, and connect again")]
    Unreadable(String),
}

/// A connection to a store.
pub struct PilafClient {
    calls: Client,
    nic: Nic,
    reader: Reader,
    router: Router,
    request: Vec<u8>,
    reply: Vec<u8>,
    counters: ReadCounters,
}

impl PilafClient {
    /// The options that suit: calls by SEND, both ways.
    #[must_use]
    pub fn options() -> ClientOptions {
        ClientOptions::preset("send-send").unwrap_or_default()
    }

    /// Connects to a server of [`super::serve`].
    ///
    /// # Errors
    /// If it cannot be reached, or is none.
    pub fn connect(
        provider: &dyn Provider,
        address: &str,
        options: ClientOptions,
    ) -> Result<Self, PilafError> {
        let mut calls = Client::connect(provider, address, options.thread(0))?;
        let nic = Nic::open(provider)?;
        let mut reply = Vec::new();
        let reader = open(&nic, &mut calls, &mut reply)?;
        let router = reader.router();
        Ok(Self { calls, nic, reader, router, request: Vec::new(), reply, counters: ReadCounters::default() })
    }

    /// What GETs took so far.
    #[must_use]
    pub fn counters(&self) -> ReadCounters {
        self.counters
    }

    /// Appends the value of a key to `value`. Returns whether there is one.
    ///
    /// # Errors
    /// [`PilafError`]. If READs fail, they are tried once more over a new connection.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, PilafError> {
        self.counters.gets += 1;
        match self.get_by_reads(&self.router.key(key)?, value) {
            Ok(Some(is_there)) => return Ok(is_there),
            Ok(None) => {}
            Err(Lost(_)) => {
                self.reader = open(&self.nic, &mut self.calls, &mut self.reply)?;
                // It may be another server, with another seed.
                self.router = self.reader.router();
                match self.get_by_reads(&self.router.key(key)?, value) {
                    Ok(Some(is_there)) => return Ok(is_there),
                    Ok(None) => {}
                    Err(Lost(why)) => return Err(PilafError::Unreadable(why)),
                }
            }
        }
        self.counters.gets_by_call += 1;
        self.call(method::GET, key, &[])?;
        value.extend_from_slice(self.reply.get(1..).unwrap_or_default());
        Ok(!self.reply.is_empty())
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`PilafError`]. If the store refuses, the key has the value that it had.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PilafError> {
        self.call(method::PUT, key, value)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// [`PilafError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, PilafError> {
        self.call(method::DELETE, key, &[])?;
        Ok(!self.reply.is_empty())
    }

    /// `None` if it was disturbed in each look.
    fn get_by_reads(&mut self, key: &Key<'_>, value: &mut Vec<u8>) -> Result<Option<bool>, Lost> {
        for _ in 0..LOOKS_MAX {
            match self.reader.look(key, value, &mut self.counters)? {
                Look::Found => return Ok(Some(true)),
                Look::Missing => return Ok(Some(false)),
                Look::Torn => self.counters.torn += 1,
                Look::Moved => self.counters.moved += 1,
            }
        }
        Ok(None)
    }

    fn call(&mut self, method: u16, key: &[u8], value: &[u8]) -> Result<(), PilafError> {
        self.router.key(key)?;
        encode_pair(key, value, &mut self.request);
        self.reply.clear();
        Ok(self.calls.call(method, &self.request, &mut self.reply)?)
    }
}

/// Asks the server for a queue pair to READ over.
fn open(nic: &Nic, calls: &mut Client, reply: &mut Vec<u8>) -> Result<Reader, PilafError> {
    let pair = Unconnected::new(nic)?;
    let request = postcard::to_allocvec(&pair.info())
        .map_err(|_| PilafError::NoStore("a queue pair cannot be told"))?;
    reply.clear();
    calls.call(method::OPEN, &request, reply)?;
    let opened: Opened =
        postcard::from_bytes(reply).map_err(|_| PilafError::NoStore("what it grants is no grant"))?;
    if opened.entries == 0 {
        return Err(PilafError::NoStore("its index has no entries"));
    }
    Ok(pair.connect(opened)?)
}

//! A blocking client of the service at an [`Address`].

use super::address::{Address, Server};
use crate::commands::rpc::is_silence;
use crate::commands::startup_wait::{self, is_absence};
use crate::failure::{Exit, Failure, NO_REPLY_REMEDY};
use farcall::kv::{
    Change, KvClient as RpcClient, KvConnectError, KvError, MemcachedClient, MemcachedError, Stats, Write,
};
use farcall::rpc::{CallError, ClientOptions, ConnectError};
use farcall_verbs::with_sources;
use std::io::ErrorKind;
use std::time::Duration;

/// A connection to a key-value service.
pub struct KvClient {
    connection: Connection,
    address: Address,
}

enum Connection {
    /// The memcached protocol over a stream socket.
    Memcached(MemcachedClient),
    /// RPC over verbs, and the queued records that are stored together.
    Rpc { client: Box<RpcClient>, queued: Vec<(Vec<u8>, Vec<u8>)> },
}

impl KvClient {
    /// Connects to the service.
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub fn connect(server: &Server) -> Result<Self, Failure> {
        let (address, timeout) = (&server.address, server.timeout());
        if !matches!(address, Address::Rpc(_)) && server.nic.is_given() {
            return Err(Failure::new("--provider, --device and --gid-index require an RPC address")
                .at(address)
                .remedy(
                    "name the RPC address of the service, such as --server rpc:127.0.0.1:11212, or omit these options",
                )
                .exit(Exit::Usage));
        }
        let memcached = match address {
            Address::Tcp(address) => startup_wait::connect(
                || MemcachedClient::connect_tcp_within(*address, timeout),
                |error| is_absence(error.kind()),
            ),
            Address::Unix(path) => startup_wait::connect(
                || MemcachedClient::connect_unix_within(path, timeout),
                |error| is_absence(error.kind()),
            ),
            Address::Rpc(rpc) => {
                // For a few calls, reconnecting and probing are unnecessary.
                let options = ClientOptions::default().connect_timeout(timeout).reconnect(false).probe(false);
                let options = options.call_timeout(timeout);
                let selection = server.nic.selection();
                let client = startup_wait::connect(
                    || {
                        selection.connect(
                            |nic| RpcClient::connect(nic, &rpc.to_string(), &options),
                            KvConnectError::is_other_provider,
                        )
                    },
                    is_absent,
                );
                let client = client.map_err(|error| refused(address, &error))?;
                let connection = Connection::Rpc { client: Box::new(client), queued: Vec::new() };
                return Ok(Self { connection, address: address.clone() });
            }
        };
        match memcached {
            Ok(client) => Ok(Self { connection: Connection::Memcached(client), address: address.clone() }),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                Err(unreachable(address, &error).remedy(NO_REPLY_REMEDY))
            }
            Err(error) => Err(unreachable(address, &error)),
        }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// If the key is invalid or the service fails.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let Self { connection, address } = self;
        let value = match connection {
            Connection::Memcached(client) => {
                client.get(key).map(|value| value.map(|value| value.bytes.to_vec())).map_err(Error::from)
            }
            Connection::Rpc { client, .. } => {
                client.get(key).map(|item| item.map(|item| item.value.to_vec())).map_err(Error::from)
            }
        };
        value.map_err(|error| error.failure("cannot read the key", address))
    }

    /// Stores a value that expires after `ttl_s` seconds, or never if it is 0. Returns whether it was stored.
    ///
    /// # Errors
    /// If the key is invalid, or the service refuses or fails.
    pub fn set(&mut self, key: &[u8], value: &[u8], ttl_s: u32) -> Result<bool, Failure> {
        let Self { connection, address } = self;
        let stored = match connection {
            Connection::Memcached(client) => client
                .queue_store("set", key, value, 0, ttl_s)
                .and_then(|()| client.flush())
                .and_then(|()| client.read_stored())
                .map_err(Error::from),
            Connection::Rpc { client, .. } => {
                let write = Write::of(value).time_to_live(Duration::from_secs(ttl_s.into()));
                client.put(key, write).map(is_done).map_err(Error::from)
            }
        };
        stored.map_err(|error| error.failure("cannot store the value", address))
    }

    /// Queues a value to be stored without expiration; [`Self::finish_stores`] sends it.
    ///
    /// # Errors
    /// If the key is invalid; nothing is queued then.
    pub fn queue_store(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match &mut self.connection {
            Connection::Memcached(client) => {
                client.queue_store("set", key, value, 0, 0).map_err(|error| with_sources(&error))
            }
            Connection::Rpc { client, queued } => {
                client.check_key(key).map_err(|error| error.to_string())?;
                queued.push((key.to_vec(), value.to_vec()));
                Ok(())
            }
        }
    }

    /// Sends the queued records and waits for the replies. Returns how many of the `queued` records were stored, and
    /// the first refusal.
    ///
    /// # Errors
    /// If the service fails.
    pub fn finish_stores(&mut self, queued: u64) -> Result<(u64, Option<String>), Failure> {
        let Self { connection, address } = self;
        let finished = match connection {
            Connection::Memcached(client) => finish_memcached(client, queued),
            Connection::Rpc { client, queued } => finish_rpc(client, queued),
        };
        finished.map_err(|error| error.failure("cannot store the values", address))
    }

    /// Removes a key. Returns whether it had a value.
    ///
    /// # Errors
    /// If the key is invalid or the service fails.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let Self { connection, address } = self;
        let removed = match connection {
            Connection::Memcached(client) => client.delete(key).map_err(Error::from),
            Connection::Rpc { client, .. } => client.delete(key, None).map(is_done).map_err(Error::from),
        };
        removed.map_err(|error| error.failure("cannot remove the key", address))
    }

    /// Returns the service's statistics by name.
    ///
    /// # Errors
    /// If the service fails.
    pub fn stats(&mut self) -> Result<Vec<(String, String)>, Failure> {
        let Self { connection, address } = self;
        let stats = match connection {
            Connection::Memcached(client) => client.stats().map_err(Error::from),
            Connection::Rpc { client, .. } => client.stats().map(|parts| total(&parts)).map_err(Error::from),
        };
        stats.map_err(|error| error.failure("cannot read the statistics", address))
    }
}

fn is_absent(error: &KvConnectError) -> bool {
    matches!(error, KvConnectError::Unreachable { source: ConnectError::Unreachable { source, .. }, .. }
        if is_absence(source.kind()))
}

fn is_done(change: Change) -> bool {
    matches!(change, Change::Done { .. })
}

fn finish_memcached(client: &mut MemcachedClient, queued: u64) -> Result<(u64, Option<String>), Error> {
    client.flush()?;
    let (mut stored, mut refusal) = (0, None);
    for _ in 0..queued {
        match client.read_stored() {
            Ok(true) => stored += 1,
            Ok(false) => {}
            Err(MemcachedError::Refused(text)) => drop(refusal.get_or_insert(text)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((stored, refusal))
}

fn finish_rpc(
    client: &mut RpcClient,
    queued: &mut Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<(u64, Option<String>), Error> {
    let (mut stored, mut refusal, mut failure) = (0, None, None);
    let records = queued.iter().map(|(key, value)| (key.as_slice(), Write::of(value)));
    client.put_many(records, |_, outcome| match outcome {
        Ok(change) => stored += u64::from(is_done(change)),
        Err(error) if Error::is_of_one_record(&error) => drop(refusal.get_or_insert(error.to_string())),
        Err(error) => drop(failure.get_or_insert(error)),
    });
    queued.clear();
    failure.map_or(Ok((stored, refusal)), |error| Err(error.into()))
}

/// Returns the statistics of the complete store, under the names of the memcached front ends.
fn total(parts: &[Stats]) -> Vec<(String, String)> {
    let mut sum = Stats::default();
    parts.iter().for_each(|part| sum += part);
    let figures = sum.named().into_iter().chain([("threads", parts.len() as u64)]);
    figures.map(|(name, value)| (name.to_owned(), value.to_string())).collect()
}

/// A failed request of either protocol.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Error {
    Memcached(#[from] MemcachedError),
    Rpc(#[from] KvError),
}

impl Error {
    /// Returns whether a store failed because of the record, so that other records may succeed.
    fn is_of_one_record(error: &KvError) -> bool {
        match error {
            KvError::Key(_) | KvError::ValueTooLarge { .. } | KvError::OutOfMemory => true,
            KvError::Call(error) => {
                matches!(error, CallError::RequestTooLarge { .. } | CallError::Application { .. })
            }
            _ => false,
        }
    }

    fn failure(&self, what: &str, address: &Address) -> Failure {
        let failure = Failure::because(what, self).at(address);
        let remedy = match self {
            Self::Memcached(MemcachedError::NoAnswer { .. }) => NO_REPLY_REMEDY,
            Self::Rpc(KvError::Call(error)) if is_silence(error) => NO_REPLY_REMEDY,
            Self::Memcached(MemcachedError::Io(_) | MemcachedError::Closed)
            | Self::Rpc(KvError::Call(CallError::NotSent(_) | CallError::OutcomeUnknown(_))) => {
                "check whether the service runs: farcall kv stats"
            }
            _ => return failure,
        };
        failure.exit(Exit::Unreachable).remedy(remedy)
    }
}

fn unreachable(address: &Address, error: &dyn std::error::Error) -> Failure {
    Failure::because("cannot reach the key-value service", error)
        .at(address)
        .remedy("start it (farcall kv serve), or name another service with --server")
        .exit(Exit::Unreachable)
}

fn refused(address: &Address, error: &KvConnectError) -> Failure {
    match error {
        KvConnectError::Unreachable { source: ConnectError::Unreachable { source, .. }, .. } => {
            let failure = unreachable(address, error);
            if source.kind() == ErrorKind::TimedOut {
                return failure.remedy(NO_REPLY_REMEDY);
            }
            failure
                .remedy("start it (farcall kv serve --rpc HOST:PORT), or name another service with --server")
        }
        _ => Failure::because("cannot use the key-value service", error)
            .at(address)
            .remedy("name the address that farcall kv serve has as its option --rpc"),
    }
}

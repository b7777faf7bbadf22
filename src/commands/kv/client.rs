//! A blocking client of whatever an [`Address`] names.

use super::address::Address;
use crate::failure::{Exit, Failure};
use farcall_kv::memcached::client::{Client, ClientError};
use std::time::Duration;

/// A service that does not answer for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a key-value service.
pub struct KvClient {
    client: Client,
    address: Address,
}

impl KvClient {
    /// Connects.
    ///
    /// # Errors
    /// When the service cannot be reached.
    pub fn connect(address: &Address) -> Result<Self, Failure> {
        let client = match address {
            Address::Tcp(address) => Client::connect_tcp(*address),
            Address::Unix(path) => Client::connect_unix(path),
        };
        let client = client.and_then(|client| client.set_timeout(Some(PATIENCE)).map(|()| client));
        match client {
            Ok(client) => Ok(Self { client, address: address.clone() }),
            Err(error) => Err(Failure::because("cannot reach the key-value service", &error)
                .at(address)
                .remedy("start it (farcall kv serve), or name another with --server")
                .exit(Exit::Unreachable)),
        }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// When the key is illegal or the service fails.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let value = self.client.get(key).map(|value| value.map(|value| value.bytes.to_vec()));
        value.map_err(|error| self.failed("cannot read the key", &error))
    }

    /// Stores a value that expires after `ttl_s` seconds, or never if 0. Returns whether it was stored.
    ///
    /// # Errors
    /// When the key is illegal or the service refuses or fails.
    pub fn set(&mut self, key: &[u8], value: &[u8], ttl_s: u32) -> Result<bool, Failure> {
        let stored = self
            .client
            .queue_store("set", key, value, 0, ttl_s)
            .and_then(|()| self.client.flush())
            .and_then(|()| self.client.read_stored());
        stored.map_err(|error| self.failed("cannot store the value", &error))
    }

    /// Queues a value to be stored for ever; [`Self::finish_stores`] sends it.
    ///
    /// # Errors
    /// When the key is illegal; nothing is queued then.
    pub fn queue_store(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.client.queue_store("set", key, value, 0, 0)
    }

    /// Sends what was queued and waits; returns how many of `queued` were stored, and the first refusal.
    ///
    /// # Errors
    /// When the service fails.
    pub fn finish_stores(&mut self, queued: u64) -> Result<(u64, Option<String>), Failure> {
        self.client.flush().map_err(|error| self.failed("cannot store the values", &error))?;
        let (mut stored, mut refusal) = (0, None);
        for _ in 0..queued {
            match self.client.read_stored() {
                Ok(true) => stored += 1,
                Ok(false) => {}
                Err(ClientError::Refused(text)) => drop(refusal.get_or_insert(text)),
                Err(error) => return Err(self.failed("cannot store the values", &error)),
            }
        }
        Ok((stored, refusal))
    }

    /// Removes a key; whether it had a value.
    ///
    /// # Errors
    /// When the key is illegal or the service fails.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        self.client.delete(key).map_err(|error| self.failed("cannot remove the key", &error))
    }

    /// The service's statistics by name.
    ///
    /// # Errors
    /// When the service fails.
    pub fn stats(&mut self) -> Result<Vec<(String, String)>, Failure> {
        self.client.stats().map_err(|error| self.failed("cannot read the statistics", &error))
    }

    fn failed(&self, what: &str, error: &ClientError) -> Failure {
        let failure = Failure::because(what, error).at(&self.address);
        match error {
            ClientError::Io(_) | ClientError::Closed => {
                failure.exit(Exit::Unreachable).remedy("see whether the service runs: farcall kv stats")
            }
            _ => failure,
        }
    }
}

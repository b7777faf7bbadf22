//! The service of one partition: one request in, one reply out.

use thiserror::Error;

use super::multi::{KeyIter, MULTI_REPLY_SOFT_MAX_BYTES, encode_deferred, encode_entry};
use super::reply::{
    PingReply, Status, encode_item, encode_number, encode_ping_reply, encode_stats, encode_status,
};
use super::{Method, ReplySink, Request, RequestError};
use crate::key::{Key, KeyError};
use crate::store::{CounterError, Outcome, Partition, Put, PutMode, StoreError};

/// A request that was refused; nothing was executed or written to the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ServiceError {
    /// The method number is unknown.
    #[error("method {method} is not offered by this key-value service")]
    UnknownMethod {
        /// The number.
        method: u16,
    },
    /// The bytes are not a valid request.
    #[error("malformed request")]
    Malformed(#[from] RequestError),
    /// The key belongs to another partition.
    #[error(
        "the key belongs to partition {owner}, this is partition {here} of {partitions}: ask PING for the seed and the \
         number of partitions, and route by the key's hash"
    )]
    WrongPartition {
        /// The partition that owns the key.
        owner: u32,
        /// The partition of this service.
        here: u32,
        /// Number of partitions.
        partitions: u32,
    },
}

impl ServiceError {
    /// [`ServiceError::code`] of a request to the wrong partition.
    pub const WRONG_PARTITION_CODE: u16 = 3;

    /// Returns the number that the RPC layer's error reply carries.
    pub fn code(&self) -> u16 {
        match self {
            ServiceError::UnknownMethod { .. } => 1,
            ServiceError::Malformed(_) => 2,
            ServiceError::WrongPartition { .. } => Self::WRONG_PARTITION_CODE,
        }
    }
}

impl From<KeyError> for ServiceError {
    fn from(error: KeyError) -> Self {
        let len_bytes = match error {
            KeyError::Empty => 0,
            KeyError::TooLong { len_bytes } => u8::try_from(len_bytes).unwrap_or(u8::MAX),
        };
        ServiceError::Malformed(RequestError::BadKeyLength { len_bytes })
    }
}

/// Executes the requests for one partition.
pub struct Service {
    partition: Partition,
}

/// Number of keys of a MULTI_GET that are looked up together, so that their memory accesses overlap.
const LOOKUP_GROUP: usize = 16;

impl Service {
    /// Creates a service for `partition`.
    pub fn new(partition: Partition) -> Self {
        Service { partition }
    }

    /// Returns the partition, for the other front ends of the same thread.
    pub fn partition(&mut self) -> &mut Partition {
        &mut self.partition
    }

    /// Executes one request and writes its reply. Does not allocate itself. `now_ms` is the partition's time.
    ///
    /// # Errors
    /// [`ServiceError`]; nothing was executed then, and `reply` is unchanged.
    #[inline]
    pub fn handle(
        &mut self,
        method: u16,
        request: &[u8],
        reply: &mut impl ReplySink,
        now_ms: u64,
    ) -> Result<(), ServiceError> {
        let method = Method::from_id(method).ok_or(ServiceError::UnknownMethod { method })?;
        match Request::decode(method, request)? {
            Request::Get { key } => {
                let key = self.own_key(key)?;
                match self.partition.get(&key, now_ms) {
                    Some(item) => encode_item(&item, reply),
                    None => encode_status(Status::NotFound, reply),
                }
                Ok(())
            }
            other => self.handle_rarer(&other, reply, now_ms),
        }
    }

    fn handle_rarer(
        &mut self,
        request: &Request<'_>,
        reply: &mut impl ReplySink,
        now_ms: u64,
    ) -> Result<(), ServiceError> {
        match *request {
            Request::Get { .. } => unreachable!("answered by handle"),
            Request::Put { key, value, flags, ttl_ms, mode } => {
                let key = self.own_key(key)?;
                let put = Put { value, flags, expires_ms: expiry(ttl_ms, now_ms), mode, ..Put::default() };
                self.put(&key, &put, reply, now_ms);
            }
            Request::Cas { key, value, flags, ttl_ms, cas } => {
                let key = self.own_key(key)?;
                let (expires_ms, mode) = (expiry(ttl_ms, now_ms), PutMode::Set);
                let put =
                    Put { value, flags, expires_ms, mode, compare_cas: Some(cas), stale_if_older: false };
                self.put(&key, &put, reply, now_ms);
            }
            Request::Delete { key, cas } => {
                let key = self.own_key(key)?;
                let compare_cas = (cas != 0).then_some(cas);
                encode_outcome(self.partition.delete(&key, compare_cas, now_ms), reply);
            }
            Request::Touch { key, ttl_ms } => {
                let key = self.own_key(key)?;
                let touched = self.partition.touch(&key, expiry(ttl_ms, now_ms), now_ms);
                encode_status(if touched { Status::Ok } else { Status::NotFound }, reply);
            }
            Request::GetAndTouch { key, ttl_ms } => {
                let key = self.own_key(key)?;
                match self.partition.get_and_touch(&key, expiry(ttl_ms, now_ms), now_ms) {
                    Some(item) => encode_item(&item, reply),
                    None => encode_status(Status::NotFound, reply),
                }
            }
            Request::Count { key, by } => {
                let key = self.own_key(key)?;
                match self.partition.count(&key, by, now_ms) {
                    Ok(Some((number, cas))) => {
                        encode_number(Status::Ok, number, reply);
                        reply.push(&cas.to_le_bytes());
                    }
                    Ok(None) => encode_status(Status::NotFound, reply),
                    Err(CounterError::NotANumber) => encode_status(Status::NotANumber, reply),
                    Err(CounterError::Store(error)) => encode_refusal(error, reply),
                }
            }
            Request::MultiGet { encoded, .. } => self.multi_get(encoded, reply, now_ms)?,
            Request::Ping => encode_ping_reply(&self.ping_reply(), reply),
            Request::Stats => encode_stats(&self.partition.stats(), reply),
            Request::FlushAll { delay_ms } => {
                self.partition.flush_all(now_ms.saturating_add(delay_ms), now_ms);
                encode_status(Status::Ok, reply);
            }
        }
        Ok(())
    }

    #[inline]
    fn own_key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, ServiceError> {
        let key = self.partition.key(bytes)?;
        if self.partition.owns(&key) {
            return Ok(key);
        }
        let router = self.partition.router();
        let here = self.partition.config().partition;
        Err(ServiceError::WrongPartition { owner: router.owner(&key), here, partitions: router.partitions() })
    }

    fn put(&mut self, key: &Key<'_>, put: &Put<'_>, reply: &mut impl ReplySink, now_ms: u64) {
        match self.partition.put(key, put, now_ms) {
            Ok(outcome) => encode_outcome(outcome, reply),
            Err(error) => encode_refusal(error, reply),
        }
    }

    fn multi_get(
        &mut self,
        encoded: &[u8],
        reply: &mut impl ReplySink,
        now_ms: u64,
    ) -> Result<(), ServiceError> {
        for key in KeyIter::new(encoded) {
            self.own_key(key)?;
        }
        encode_status(Status::Ok, reply);
        let mut reply_bytes = 0;
        let mut keys = KeyIter::new(encoded);
        let mut group: [Option<Key<'_>>; LOOKUP_GROUP] = [None; LOOKUP_GROUP];
        loop {
            let mut filled = 0;
            for (place, bytes) in group.iter_mut().zip(&mut keys) {
                let key = self.partition.key(bytes)?;
                self.partition.prefetch_bucket(&key);
                *place = Some(key);
                filled += 1;
            }
            let group = group[..filled].iter().flatten();
            group.clone().for_each(|key| self.partition.prefetch_item(key));
            for key in group {
                if reply_bytes >= MULTI_REPLY_SOFT_MAX_BYTES {
                    encode_deferred(reply);
                } else {
                    reply_bytes += encode_entry(self.partition.get(key, now_ms), reply);
                }
            }
            if filled < LOOKUP_GROUP {
                return Ok(());
            }
        }
    }

    fn ping_reply(&self) -> PingReply {
        let config = self.partition.config();
        PingReply {
            partition: config.partition,
            partitions: config.partitions,
            seed: config.seed,
            value_max_bytes: config.value_max_bytes as u64,
        }
    }
}

fn expiry(ttl_ms: u64, now_ms: u64) -> u64 {
    if ttl_ms == 0 { 0 } else { now_ms.saturating_add(ttl_ms) }
}

fn encode_outcome(outcome: Outcome, reply: &mut impl ReplySink) {
    match outcome {
        Outcome::Stored { cas } => encode_number(Status::Ok, cas, reply),
        Outcome::NotStored => encode_status(Status::NotStored, reply),
        Outcome::Exists => encode_status(Status::Exists, reply),
        Outcome::NotFound => encode_status(Status::NotFound, reply),
    }
}

fn encode_refusal(error: StoreError, reply: &mut impl ReplySink) {
    match error {
        StoreError::ValueTooLarge { max_bytes, .. } => {
            encode_number(Status::TooLarge, max_bytes as u64, reply)
        }
        StoreError::OutOfMemory => encode_status(Status::OutOfMemory, reply),
    }
}

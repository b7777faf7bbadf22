//! Replies: layout, encoding, decoding.

use thiserror::Error;

use super::{ReplySink, VERSION};
use crate::key::{HashSeed, Router};
use crate::store::{Item, Stats};

/// Result of a well-formed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// Done; the body follows.
    Ok = 0,
    /// The key has no item.
    NotFound = 1,
    /// The condition of the put did not hold; nothing has changed.
    NotStored = 2,
    /// The item has another version; nothing has changed.
    Exists = 3,
    /// The value is too large; nothing has changed. The body holds the limit (8 bytes).
    TooLarge = 4,
    /// The store is full and does not evict; nothing has changed.
    OutOfMemory = 5,
    /// The value is no decimal number; nothing has changed.
    NotANumber = 6,
}

impl Status {
    fn from_wire(byte: u8) -> Option<Status> {
        use Status::{Exists, NotANumber, NotFound, NotStored, Ok, OutOfMemory, TooLarge};
        const ALL: [Status; 7] = [Ok, NotFound, NotStored, Exists, TooLarge, OutOfMemory, NotANumber];
        ALL.get(usize::from(byte)).copied()
    }
}

/// Reasons for which bytes are not a valid or expected reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The reply ends too early.
    #[error("the reply of {len_bytes} bytes ends before its last field")]
    Truncated {
        /// Length of the reply.
        len_bytes: usize,
    },
    /// The version is not supported by this build.
    #[error("the server answers in version {version}, this client speaks {VERSION}: update the older side")]
    UnknownVersion {
        /// The server's version.
        version: u8,
    },
    /// The status number is unknown.
    #[error("the server answers with status {status}, which this client does not know")]
    UnknownStatus {
        /// The number.
        status: u8,
    },
    /// The status is not valid for this method.
    #[error("the server answers {status:?}, which does not answer this request")]
    Unexpected {
        /// The status.
        status: Status,
    },
}

/// Length of the prefix of a reply in bytes.
pub(super) const PREFIX_BYTES: usize = 4;

/// Length of a GET reply before the value in bytes.
pub(super) const ITEM_BYTES: usize = PREFIX_BYTES + 12;

/// Writes a reply without body.
#[inline]
pub(super) fn encode_status(status: Status, out: &mut impl ReplySink) {
    out.push(&[VERSION, status as u8, 0, 0]);
}

/// Writes a reply whose body is one number (a version, a limit).
pub(super) fn encode_number(status: Status, number: u64, out: &mut impl ReplySink) {
    let mut reply = [VERSION, status as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    reply[PREFIX_BYTES..].copy_from_slice(&number.to_le_bytes());
    out.push(&reply);
}

/// Writes a GET reply: flags, version, value.
#[inline]
pub(super) fn encode_item(item: &Item<'_>, out: &mut impl ReplySink) {
    let mut head = [0; ITEM_BYTES];
    head[0] = VERSION;
    head[4..8].copy_from_slice(&item.flags.to_le_bytes());
    head[8..16].copy_from_slice(&item.cas.to_le_bytes());
    out.push(&head);
    out.push(item.value);
}

/// Splits a reply into status and body.
///
/// # Errors
/// [`ReplyError`] for anything other than a reply of this version.
#[inline]
pub fn decode_status(reply: &[u8]) -> Result<(Status, &[u8]), ReplyError> {
    let truncated = ReplyError::Truncated { len_bytes: reply.len() };
    let (&[version, status, _, _], body) = reply.split_first_chunk().ok_or(truncated)?;
    if version != VERSION {
        return Err(ReplyError::UnknownVersion { version });
    }
    Ok((Status::from_wire(status).ok_or(ReplyError::UnknownStatus { status })?, body))
}

/// Decodes a GET or GET_AND_TOUCH reply; `None` is a miss.
///
/// # Errors
/// [`ReplyError`] for anything else.
#[inline]
pub fn decode_item(reply: &[u8]) -> Result<Option<super::MultiItem<'_>>, ReplyError> {
    match decode_status(reply)? {
        (Status::Ok, body) => {
            let (flags, rest) = split_u32(body)?;
            let (cas, value) = split_u64(rest)?;
            Ok(Some(super::MultiItem { value, flags, cas }))
        }
        (Status::NotFound, _) => Ok(None),
        (status, _) => Err(ReplyError::Unexpected { status }),
    }
}

/// Decodes a PUT, CAS or DELETE reply: the status and, if it is [`Status::Ok`], the item's version.
///
/// # Errors
/// [`ReplyError`] for anything other than such a reply.
pub fn decode_version(reply: &[u8]) -> Result<(Status, u64), ReplyError> {
    match decode_status(reply)? {
        (Status::Ok, body) => Ok((Status::Ok, split_u64(body)?.0)),
        (status, _) => Ok((status, 0)),
    }
}

/// Decodes an INCR or DECR reply: the status and, if it is [`Status::Ok`], the number and the version.
///
/// # Errors
/// [`ReplyError`] for anything other than such a reply.
pub fn decode_count(reply: &[u8]) -> Result<(Status, u64, u64), ReplyError> {
    match decode_status(reply)? {
        (Status::Ok, body) => {
            let (number, rest) = split_u64(body)?;
            Ok((Status::Ok, number, split_u64(rest)?.0))
        }
        (status, _) => Ok((status, 0, 0)),
    }
}

/// Decodes a STATS reply.
///
/// # Errors
/// [`ReplyError`] for anything else.
pub fn decode_stats(reply: &[u8]) -> Result<Stats, ReplyError> {
    let mut rest = expect_ok(reply)?;
    let mut values = [0; Stats::FIELDS];
    for value in &mut values {
        (*value, rest) = split_u64(rest)?;
    }
    Ok(Stats::from_array(values))
}

pub(crate) fn encode_stats(stats: &Stats, out: &mut impl ReplySink) {
    encode_status(Status::Ok, out);
    for value in stats.to_array() {
        out.push(&value.to_le_bytes());
    }
}

/// The reply to PING: the identity of the partition, and all parameters that a client needs to route keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingReply {
    /// Number of the partition that replied.
    pub partition: u32,
    /// Number of partitions of the store.
    pub partitions: u32,
    /// Seed of the key hash.
    pub seed: HashSeed,
    /// Maximum length of a value in bytes.
    pub value_max_bytes: u64,
}

impl PingReply {
    /// Returns the router that agrees with the server.
    pub fn router(&self) -> Router {
        Router::new(self.seed, self.partitions)
    }
}

pub(super) fn encode_ping_reply(reply: &PingReply, out: &mut impl ReplySink) {
    encode_status(Status::Ok, out);
    out.push(&reply.partition.to_le_bytes());
    out.push(&reply.partitions.to_le_bytes());
    out.push(&reply.seed.0.to_le_bytes());
    out.push(&reply.value_max_bytes.to_le_bytes());
}

/// Decodes a PING reply.
///
/// # Errors
/// [`ReplyError`] for anything else.
pub fn decode_ping_reply(reply: &[u8]) -> Result<PingReply, ReplyError> {
    let (partition, rest) = split_u32(expect_ok(reply)?)?;
    let (partitions, rest) = split_u32(rest)?;
    let (seed, rest) = split_u64(rest)?;
    let (value_max_bytes, _) = split_u64(rest)?;
    Ok(PingReply { partition, partitions, seed: HashSeed(seed), value_max_bytes })
}

fn expect_ok(reply: &[u8]) -> Result<&[u8], ReplyError> {
    match decode_status(reply)? {
        (Status::Ok, body) => Ok(body),
        (status, _) => Err(ReplyError::Unexpected { status }),
    }
}

fn split_u64(bytes: &[u8]) -> Result<(u64, &[u8]), ReplyError> {
    let truncated = ReplyError::Truncated { len_bytes: bytes.len() };
    let (head, rest) = bytes.split_first_chunk().ok_or(truncated)?;
    Ok((u64::from_le_bytes(*head), rest))
}

fn split_u32(bytes: &[u8]) -> Result<(u32, &[u8]), ReplyError> {
    let truncated = ReplyError::Truncated { len_bytes: bytes.len() };
    let (head, rest) = bytes.split_first_chunk().ok_or(truncated)?;
    Ok((u32::from_le_bytes(*head), rest))
}

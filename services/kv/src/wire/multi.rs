//! MULTI_GET: many keys of one partition in one request.
//!
//! Request after the prefix: the number of keys (2 bytes), then each key after its length (1 byte). Reply after the
//! prefix: for each key, in order, one byte: 0 missed, 1 found, 2 deferred; if found, flags (4), version (8), value
//! length (4) and the value. A key is deferred if the reply already contains [`MULTI_REPLY_SOFT_MAX_BYTES`]; the
//! client requests it again.

use super::reply::{ReplyError, decode_status};
use super::request::{PREFIX_BYTES, RequestError};
use super::{ReplySink, Status, VERSION};
use crate::key::KEY_MAX_BYTES;
use crate::store::Item;

/// Maximum number of keys in one MULTI_GET.
pub const MULTI_KEYS_MAX: u16 = 4096;

/// Length of a MULTI_GET reply in bytes at which the remaining keys are deferred.
pub const MULTI_REPLY_SOFT_MAX_BYTES: usize = 1 << 20;

/// Length of a found item before its value in bytes.
const FOUND_BYTES: usize = 17;

/// Writes a MULTI_GET request for `keys`, which must be at most [`MULTI_KEYS_MAX`] valid keys of one partition.
pub fn encode_multi_get<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]>, out: &mut impl ReplySink) {
    out.push(&[VERSION, 0, 0, 0]);
    out.push(&(keys.len() as u16).to_le_bytes());
    for key in keys {
        out.push(&[key.len() as u8]);
        out.push(key);
    }
}

/// Validates all keys of a request, so that its execution cannot fail halfway.
pub(super) fn check_keys(keys: u16, prefix_key_len: u8, encoded: &[u8]) -> Result<(), RequestError> {
    if prefix_key_len != 0 {
        return Err(RequestError::BadKeyLength { len_bytes: prefix_key_len });
    }
    if !(1..=MULTI_KEYS_MAX).contains(&keys) {
        return Err(RequestError::BadKeyCount { keys });
    }
    let mut at = 0;
    for _ in 0..keys {
        let too_short = |needed| RequestError::TooShort {
            len_bytes: PREFIX_BYTES + 2 + encoded.len(),
            needed_bytes: needed,
        };
        let &len_bytes = encoded.get(at).ok_or(too_short(PREFIX_BYTES + 2 + at + 1))?;
        if !(1..=KEY_MAX_BYTES).contains(&usize::from(len_bytes)) {
            return Err(RequestError::BadKeyLength { len_bytes });
        }
        at += 1 + usize::from(len_bytes);
        if at > encoded.len() {
            return Err(too_short(PREFIX_BYTES + 2 + at));
        }
    }
    match encoded.len() - at {
        0 => Ok(()),
        extra_bytes => Err(RequestError::TooLong { extra_bytes }),
    }
}

/// The keys of a decoded MULTI_GET.
#[derive(Debug, Clone)]
pub struct KeyIter<'a> {
    encoded: &'a [u8],
}

impl<'a> KeyIter<'a> {
    /// Returns an iterator over [`super::Request::MultiGet`]'s `encoded`.
    pub fn new(encoded: &'a [u8]) -> Self {
        KeyIter { encoded }
    }
}

impl<'a> Iterator for KeyIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (&len, rest) = self.encoded.split_first()?;
        let (key, rest) = rest.split_at_checked(usize::from(len))?;
        self.encoded = rest;
        Some(key)
    }
}

/// Writes one key's part of the reply. Returns its length.
pub(super) fn encode_entry(item: Option<Item<'_>>, out: &mut impl ReplySink) -> usize {
    let Some(item) = item else {
        out.push(&[MISSED]);
        return 1;
    };
    let mut head = [0; FOUND_BYTES];
    head[0] = FOUND;
    head[1..5].copy_from_slice(&item.flags.to_le_bytes());
    head[5..13].copy_from_slice(&item.cas.to_le_bytes());
    head[13..17].copy_from_slice(&(item.value.len() as u32).to_le_bytes());
    out.push(&head);
    out.push(item.value);
    FOUND_BYTES + item.value.len()
}

/// Writes the entry of a key that must be requested again.
pub(super) fn encode_deferred(out: &mut impl ReplySink) {
    out.push(&[DEFERRED]);
}

const MISSED: u8 = 0;
const FOUND: u8 = 1;
const DEFERRED: u8 = 2;

/// Result for one key in a MULTI_GET reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// There is no item.
    Missed,
    /// The item.
    Found(MultiItem<'a>),
    /// The reply was full and the key was not looked up; it must be requested again.
    Deferred,
}

/// An item in a MULTI_GET reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiItem<'a> {
    /// The stored bytes.
    pub value: &'a [u8],
    /// Flags for use by the client.
    pub flags: u32,
    /// The version.
    pub cas: u64,
}

/// Decodes a MULTI_GET reply key by key, in the order of the request.
#[derive(Debug, Clone)]
pub struct MultiReply<'a> {
    rest: &'a [u8],
}

impl<'a> MultiReply<'a> {
    /// Starts decoding a complete reply.
    ///
    /// # Errors
    /// [`ReplyError`] if the reply is not a success.
    pub fn new(reply: &'a [u8]) -> Result<Self, ReplyError> {
        match decode_status(reply)? {
            (Status::Ok, rest) => Ok(MultiReply { rest }),
            (status, _) => Err(ReplyError::Unexpected { status }),
        }
    }

    fn entry(&mut self) -> Result<Lookup<'a>, ReplyError> {
        let short = match self.rest[0] {
            MISSED => Some(Lookup::Missed),
            DEFERRED => Some(Lookup::Deferred),
            FOUND => None,
            status => return Err(ReplyError::UnknownStatus { status }),
        };
        if let Some(lookup) = short {
            self.rest = &self.rest[1..];
            return Ok(lookup);
        }
        let truncated = ReplyError::Truncated { len_bytes: self.rest.len() };
        let (head, rest) = self.rest.split_first_chunk::<FOUND_BYTES>().ok_or(truncated)?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let cas = u64::from_le_bytes(head[5..13].try_into().expect("eight bytes"));
        let (value, rest) = rest.split_at_checked(word(13) as usize).ok_or(truncated)?;
        self.rest = rest;
        Ok(Lookup::Found(MultiItem { value, flags: word(1), cas }))
    }
}

impl<'a> Iterator for MultiReply<'a> {
    type Item = Result<Lookup<'a>, ReplyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.rest = &[];
        }
        Some(entry)
    }
}

//! Requests with one key or none: layout, encoding, decoding.

use thiserror::Error;

use super::{Method, ReplySink, VERSION};
use crate::key::KEY_MAX_BYTES;
use crate::store::PutMode;

/// Length of the prefix of a request in bytes.
pub(super) const PREFIX_BYTES: usize = 4;

/// An increment's or decrement's amount.
pub use crate::store::Counter;

/// A decoded request; keys and values are borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// [`Method::Ping`].
    Ping,
    /// [`Method::Get`].
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// [`Method::Put`].
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Flags for use by the client.
        flags: u32,
        /// Time to live in milliseconds; 0: unlimited.
        ttl_ms: u64,
        /// Condition and position.
        mode: PutMode,
    },
    /// [`Method::Cas`].
    Cas {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Flags for use by the client.
        flags: u32,
        /// Time to live in milliseconds; 0: unlimited.
        ttl_ms: u64,
        /// Required version of the item.
        cas: u64,
    },
    /// [`Method::Delete`].
    Delete {
        /// The key.
        key: &'a [u8],
        /// Required version of the item; 0: any.
        cas: u64,
    },
    /// [`Method::Touch`].
    Touch {
        /// The key.
        key: &'a [u8],
        /// Time to live from now in milliseconds; 0: unlimited.
        ttl_ms: u64,
    },
    /// [`Method::GetAndTouch`].
    GetAndTouch {
        /// The key.
        key: &'a [u8],
        /// Time to live from now in milliseconds; 0: unlimited.
        ttl_ms: u64,
    },
    /// [`Method::Incr`] or [`Method::Decr`].
    Count {
        /// The key.
        key: &'a [u8],
        /// Direction and amount.
        by: Counter,
    },
    /// [`Method::MultiGet`]: the keys are read by [`super::KeyIter`].
    MultiGet {
        /// Number of keys.
        keys: u16,
        /// The keys, each after its length; checked to be complete.
        encoded: &'a [u8],
    },
    /// [`Method::Stats`].
    Stats,
    /// [`Method::FlushAll`].
    FlushAll {
        /// Delay from now in milliseconds.
        delay_ms: u64,
    },
}

/// Reasons for which bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The request ends before a field.
    #[error("the request has {len_bytes} bytes where the method needs at least {needed_bytes}")]
    TooShort {
        /// Length of the request.
        len_bytes: usize,
        /// Minimum length.
        needed_bytes: usize,
    },
    /// The request has bytes after its last field.
    #[error("the request has {extra_bytes} bytes behind its last field")]
    TooLong {
        /// Number of excess bytes.
        extra_bytes: usize,
    },
    /// The version is not supported by this build.
    #[error("version {version} is not spoken here (this server speaks {VERSION}): update the older side")]
    UnknownVersion {
        /// The version of the request.
        version: u8,
    },
    /// An option bit or value is undefined.
    #[error("options {options:#06x} are not defined for this method")]
    UnknownOptions {
        /// The options of the request.
        options: u16,
    },
    /// A key has an invalid length.
    #[error("a key of {len_bytes} bytes; a key has 1 to {KEY_MAX_BYTES} bytes")]
    BadKeyLength {
        /// The length in the request.
        len_bytes: u8,
    },
    /// There are more keys than one request may have, or none.
    #[error("{keys} keys in one MULTI_GET; 1 to {} are allowed: split it", super::MULTI_KEYS_MAX)]
    BadKeyCount {
        /// The number of keys in the request.
        keys: u16,
    },
}

impl<'a> Request<'a> {
    /// Returns the method.
    pub fn method(&self) -> Method {
        match self {
            Request::Ping => Method::Ping,
            Request::Get { .. } => Method::Get,
            Request::Put { .. } => Method::Put,
            Request::Cas { .. } => Method::Cas,
            Request::Delete { .. } => Method::Delete,
            Request::Touch { .. } => Method::Touch,
            Request::GetAndTouch { .. } => Method::GetAndTouch,
            Request::Count { by: Counter::Increment(_), .. } => Method::Incr,
            Request::Count { by: Counter::Decrement(_), .. } => Method::Decr,
            Request::MultiGet { .. } => Method::MultiGet,
            Request::Stats => Method::Stats,
            Request::FlushAll { .. } => Method::FlushAll,
        }
    }

    /// Writes the request. The caller must refuse keys longer than [`KEY_MAX_BYTES`], as [`crate::Router::key`] does;
    /// their length does not fit the field and the server would refuse them.
    pub fn encode(&self, out: &mut impl ReplySink) {
        match *self {
            Request::Ping | Request::Stats => prefix(out, 0, 0),
            Request::Get { key } => with_key(out, key, &[]),
            Request::Put { key, value, flags, ttl_ms, mode } => {
                prefix(out, key.len() as u8, mode as u16);
                out.push(&flags.to_le_bytes());
                out.push(&ttl_ms.to_le_bytes());
                out.push(key);
                out.push(value);
            }
            Request::Cas { key, value, flags, ttl_ms, cas } => {
                prefix(out, key.len() as u8, 0);
                out.push(&flags.to_le_bytes());
                out.push(&ttl_ms.to_le_bytes());
                out.push(&cas.to_le_bytes());
                out.push(key);
                out.push(value);
            }
            Request::Delete { key, cas } => with_key(out, key, &cas.to_le_bytes()),
            Request::Touch { key, ttl_ms } | Request::GetAndTouch { key, ttl_ms } => {
                with_key(out, key, &ttl_ms.to_le_bytes());
            }
            Request::Count { key, by: Counter::Increment(delta) | Counter::Decrement(delta) } => {
                with_key(out, key, &delta.to_le_bytes());
            }
            Request::MultiGet { keys, encoded } => {
                prefix(out, 0, 0);
                out.push(&keys.to_le_bytes());
                out.push(encoded);
            }
            Request::FlushAll { delay_ms } => {
                prefix(out, 0, 0);
                out.push(&delay_ms.to_le_bytes());
            }
        }
    }

    /// Decodes a request of `method`; every length is checked, and no bytes may follow the last field.
    ///
    /// # Errors
    /// [`RequestError`] for the first fault.
    #[inline]
    pub fn decode(method: Method, message: &'a [u8]) -> Result<Request<'a>, RequestError> {
        let mut rest = Fields { message, at: 0 };
        let [version, key_len, options @ ..] = rest.array::<PREFIX_BYTES>()?;
        let options = u16::from_le_bytes(options);
        if version != VERSION {
            return Err(RequestError::UnknownVersion { version });
        }
        if options != 0 && method != Method::Put {
            return Err(RequestError::UnknownOptions { options });
        }
        match method {
            Method::Ping => rest.end(key_len).map(|()| Request::Ping),
            Method::Stats => rest.end(key_len).map(|()| Request::Stats),
            Method::FlushAll => {
                let delay_ms = rest.u64()?;
                rest.end(key_len).map(|()| Request::FlushAll { delay_ms })
            }
            Method::MultiGet => {
                let keys = u16::from_le_bytes(rest.array()?);
                let encoded = rest.remainder();
                super::multi::check_keys(keys, key_len, encoded)?;
                Ok(Request::MultiGet { keys, encoded })
            }
            Method::Get => Ok(Request::Get { key: rest.last_key(key_len)? }),
            Method::Touch => {
                let ttl_ms = rest.u64()?;
                Ok(Request::Touch { key: rest.last_key(key_len)?, ttl_ms })
            }
            Method::GetAndTouch => {
                let ttl_ms = rest.u64()?;
                Ok(Request::GetAndTouch { key: rest.last_key(key_len)?, ttl_ms })
            }
            Method::Delete => {
                let cas = rest.u64()?;
                Ok(Request::Delete { key: rest.last_key(key_len)?, cas })
            }
            Method::Incr => {
                let by = Counter::Increment(rest.u64()?);
                Ok(Request::Count { key: rest.last_key(key_len)?, by })
            }
            Method::Decr => {
                let by = Counter::Decrement(rest.u64()?);
                Ok(Request::Count { key: rest.last_key(key_len)?, by })
            }
            Method::Put => {
                let mode = mode_from_wire(options)?;
                let (flags, ttl_ms) = (u32::from_le_bytes(rest.array()?), rest.u64()?);
                Ok(Request::Put { key: rest.key(key_len)?, value: rest.remainder(), flags, ttl_ms, mode })
            }
            Method::Cas => {
                let (flags, ttl_ms, cas) = (u32::from_le_bytes(rest.array()?), rest.u64()?, rest.u64()?);
                Ok(Request::Cas { key: rest.key(key_len)?, value: rest.remainder(), flags, ttl_ms, cas })
            }
        }
    }
}

fn prefix(out: &mut impl ReplySink, key_len: u8, options: u16) {
    let [low, high] = options.to_le_bytes();
    out.push(&[VERSION, key_len, low, high]);
}

fn with_key(out: &mut impl ReplySink, key: &[u8], fields: &[u8]) {
    prefix(out, key.len() as u8, 0);
    out.push(fields);
    out.push(key);
}

/// The modes by their number on the wire.
const MODES: [PutMode; 5] = [PutMode::Set, PutMode::Add, PutMode::Replace, PutMode::Append, PutMode::Prepend];

fn mode_from_wire(options: u16) -> Result<PutMode, RequestError> {
    MODES.get(usize::from(options)).copied().ok_or(RequestError::UnknownOptions { options })
}

/// A reader of fixed fields that never reads beyond the message.
struct Fields<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], RequestError> {
        let end = self.at + len;
        let too_short = RequestError::TooShort { len_bytes: self.message.len(), needed_bytes: end };
        let field = self.message.get(self.at..end).ok_or(too_short)?;
        self.at = end;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RequestError> {
        Ok(self.take(N)?.try_into().expect("take gives exactly N bytes"))
    }

    fn u64(&mut self) -> Result<u64, RequestError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn key(&mut self, key_len: u8) -> Result<&'a [u8], RequestError> {
        if !(1..=KEY_MAX_BYTES).contains(&usize::from(key_len)) {
            return Err(RequestError::BadKeyLength { len_bytes: key_len });
        }
        self.take(usize::from(key_len))
    }

    fn last_key(&mut self, key_len: u8) -> Result<&'a [u8], RequestError> {
        let key = self.key(key_len)?;
        self.at_end()?;
        Ok(key)
    }

    fn remainder(&mut self) -> &'a [u8] {
        let rest = &self.message[self.at..];
        self.at = self.message.len();
        rest
    }

    /// Checks that a request without a key ends here.
    fn end(&self, key_len: u8) -> Result<(), RequestError> {
        if key_len != 0 {
            return Err(RequestError::BadKeyLength { len_bytes: key_len });
        }
        self.at_end()
    }

    fn at_end(&self) -> Result<(), RequestError> {
        match self.message.len() - self.at {
            0 => Ok(()),
            extra_bytes => Err(RequestError::TooLong { extra_bytes }),
        }
    }
}

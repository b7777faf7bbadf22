//! The line of a meta command: key and flags.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};

use super::refusal::{
    BAD_COUNTER_MODE, BAD_FORMAT, BAD_INITIAL, BAD_KEY, BAD_META_DELTA, BAD_MODE, BAD_MODE_LENGTH, BAD_TOKEN,
    DUPLICATE_FLAG, ERROR, INVALID_FLAG, INVALID_FLAGS, OPAQUE_TOO_LONG, Refusal, TOO_MANY_FLAGS,
    TOO_MANY_GET_FLAGS,
};
use super::text::{Exptime, block_bytes, counter, next_token, number, number32};
use crate::key::KEY_MAX_BYTES;
use crate::store::{Counter, PutMode};

/// Base64 that accepts unused bits in the last character, as memcached does.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The flags of all meta commands. Each command accepts all of them and ignores those of the others.
const FLAGS: &[u8] = b"bcfhklqstuvCDFIJLMNOPRT";

/// Maximum number of tokens of a meta command line.
const TOKENS_MAX: usize = 19;

/// Maximum decoded length of the longest base64 key in bytes, padding included.
const DECODED_MAX_BYTES: usize = KEY_MAX_BYTES.next_multiple_of(3);

/// Maximum length of a base64 key in bytes.
const ENCODED_MAX_BYTES: usize = KEY_MAX_BYTES.div_ceil(3) * 4;

/// Maximum length of an opaque token in bytes, including its flag.
const OPAQUE_MAX_BYTES: usize = 32;

/// The meta commands with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaKind {
    Get,
    Set,
    Delete,
    Arithmetic,
    Debug,
}

/// A parsed meta command.
#[derive(Debug)]
pub(crate) struct Meta<'a> {
    pub(super) kind: MetaKind,
    /// The key as received, which is echoed.
    pub(super) key_text: &'a [u8],
    decoded: Option<([u8; DECODED_MAX_BYTES], usize)>,
    /// The flags as received: the reply repeats them in order.
    pub(super) flags_text: &'a [u8],
    pub(super) len_bytes: u64,
    pub(super) quiet: bool,
    pub(super) wants_value: bool,
    pub(super) keep_order: bool,
    pub(super) invalidate: bool,
    pub(super) compare_cas: Option<u64>,
    pub(super) client_flags: u32,
    pub(super) ttl: Option<Exptime>,
    pub(super) vivify: Option<Exptime>,
    pub(super) recache_before: Option<Exptime>,
    pub(super) mode: PutMode,
    pub(super) by: Counter,
    pub(super) initial: u64,
}

impl<'a> Meta<'a> {
    /// Returns the bytes of the key.
    pub(super) fn key(&self) -> &[u8] {
        match &self.decoded {
            Some((bytes, len)) => &bytes[..*len],
            None => self.key_text,
        }
    }

    /// Returns the flags as received, one token each.
    pub(super) fn flags(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.flags_text;
        std::iter::from_fn(move || Some(next_token(&mut rest)).filter(|token| !token.is_empty()))
    }

    /// Writes the key as the client sent it; a key sent in base64 is encoded again and marked.
    pub(super) fn push_key(&self, out: &mut Vec<u8>) {
        if self.decoded.is_none() {
            return out.extend_from_slice(self.key_text);
        }
        let mut encoded = [0; ENCODED_MAX_BYTES];
        // A decoded key has at most `KEY_MAX_BYTES` bytes, so its encoding always fits.
        let len = BASE64.encode_slice(self.key(), &mut encoded).unwrap_or(0);
        out.extend_from_slice(&encoded[..len]);
        out.extend_from_slice(b" b");
    }

    /// Parses the part of the line after the verb.
    pub(super) fn parse(kind: MetaKind, mut rest: &'a [u8]) -> Result<Meta<'a>, Refusal> {
        let key_text = next_token(&mut rest);
        if key_text.is_empty() {
            return Err(if kind == MetaKind::Debug { BAD_FORMAT.into() } else { ERROR.into() });
        }
        let mut len_bytes = 0;
        let mut skip_bytes = None;
        if kind == MetaKind::Set {
            len_bytes = block_bytes(next_token(&mut rest))?;
            skip_bytes = Some(len_bytes);
        }
        let mut meta = Meta {
            kind,
            key_text,
            decoded: None,
            flags_text: rest,
            len_bytes,
            quiet: false,
            wants_value: false,
            keep_order: false,
            invalidate: false,
            compare_cas: None,
            client_flags: 0,
            ttl: None,
            vivify: None,
            recache_before: None,
            mode: PutMode::Set,
            by: Counter::Increment(1),
            initial: 0,
        };
        let read = match kind {
            _ if key_text.len() > KEY_MAX_BYTES => Err(BAD_FORMAT),
            MetaKind::Debug => meta.read_debug_flag(),
            _ => meta.read_flags(),
        };
        read.map_err(|reply| Refusal { reply, skip_bytes })?;
        Ok(meta)
    }

    /// Reads the flag `b`, which is valid only as the first token; further tokens are ignored.
    fn read_debug_flag(&mut self) -> Result<(), &'static [u8]> {
        if self.flags().next() == Some(b"b") {
            self.decode_key().map_err(|_| BAD_FORMAT)?;
        }
        Ok(())
    }

    fn decode_key(&mut self) -> Result<(), &'static [u8]> {
        let mut bytes = [0; DECODED_MAX_BYTES];
        let len = BASE64.decode_slice(self.key_text, &mut bytes).unwrap_or(0);
        if !(1..=KEY_MAX_BYTES).contains(&len) {
            return Err(BAD_KEY);
        }
        self.decoded = Some((bytes, len));
        Ok(())
    }

    /// Reports errors as memcached does: an unknown or repeated flag at once, otherwise the last error.
    fn read_flags(&mut self) -> Result<(), &'static [u8]> {
        let before_flags = if self.kind == MetaKind::Set { 3 } else { 2 };
        if before_flags + self.flags().count() > TOKENS_MAX {
            return Err(if self.kind == MetaKind::Get { TOO_MANY_GET_FLAGS } else { TOO_MANY_FLAGS });
        }
        let result = self.take_flags();
        match self.kind {
            MetaKind::Delete | MetaKind::Arithmetic => result.map_err(|_| INVALID_FLAGS)?,
            _ => result?,
        }
        if self.flags().any(|token| token[0] == b'O' && token.len() > OPAQUE_MAX_BYTES) {
            return Err(OPAQUE_TOO_LONG);
        }
        self.take_mode()
    }

    fn take_flags(&mut self) -> Result<(), &'static [u8]> {
        let (mut seen, mut wrong) = (0u128, None);
        for token in self.flags() {
            let (flag, argument) = (token[0], &token[1..]);
            if flag >= 127 || seen & (1 << flag) != 0 {
                return Err(DUPLICATE_FLAG);
            }
            seen |= 1 << flag;
            if !FLAGS.contains(&flag) {
                return Err(INVALID_FLAG);
            }
            if let Err(reply) = self.take_flag(flag, argument) {
                // memcached has no specific message for malformed client flags.
                wrong = Some(if flag == b'F' { wrong.unwrap_or(BAD_FORMAT) } else { reply });
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    fn take_flag(&mut self, flag: u8, argument: &[u8]) -> Result<(), &'static [u8]> {
        let exptime = || Exptime::parse(argument).ok_or(BAD_TOKEN);
        match flag {
            b'b' => self.decode_key()?,
            b'q' => self.quiet = true,
            b'v' => self.wants_value = true,
            b'u' => self.keep_order = true,
            b'I' => self.invalidate = true,
            b'C' => self.compare_cas = Some(number(argument).ok_or(BAD_TOKEN)?),
            b'F' => self.client_flags = number32(argument).ok_or(BAD_FORMAT)?,
            b'T' => self.ttl = Some(exptime()?),
            b'N' => self.vivify = Some(exptime()?),
            b'R' => self.recache_before = Some(exptime()?),
            b'J' => self.initial = number(argument).ok_or(BAD_INITIAL)?,
            b'D' => {
                number(argument).ok_or(BAD_META_DELTA)?;
            }
            b'M' if argument.len() != 1 => return Err(BAD_MODE_LENGTH),
            _ => {}
        }
        Ok(())
    }

    /// Applies the mode flag `M`, whose values depend on the kind of the command.
    fn take_mode(&mut self) -> Result<(), &'static [u8]> {
        let argument = |flag| self.flags().find(|token| token[0] == flag).map(|token| &token[1..]);
        let mode = argument(b'M');
        match self.kind {
            MetaKind::Set => {
                self.mode = match mode {
                    None | Some(b"S") => PutMode::Set,
                    Some(b"E") => PutMode::Add,
                    Some(b"A") => PutMode::Append,
                    Some(b"P") => PutMode::Prepend,
                    Some(b"R") => PutMode::Replace,
                    Some(_) => return Err(BAD_MODE),
                }
            }
            MetaKind::Arithmetic => {
                let delta = argument(b'D').and_then(number).unwrap_or(1);
                self.by = match mode {
                    None | Some(b"I" | b"+") => counter(true, delta),
                    Some(b"D" | b"-") => counter(false, delta),
                    Some(_) => return Err(BAD_COUNTER_MODE),
                }
            }
            MetaKind::Get | MetaKind::Delete | MetaKind::Debug => {}
        }
        Ok(())
    }
}

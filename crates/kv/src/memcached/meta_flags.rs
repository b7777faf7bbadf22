//! A meta command's line: key and flags.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::command::block_bytes;
use super::refusal::{
    BAD_COUNTER_MODE, BAD_FORMAT, BAD_MODE, BAD_TOKEN, DUPLICATE_FLAG, ERROR, INVALID_FLAG, OPAQUE_TOO_LONG,
    Refusal,
};
use super::text::{Exptime, counter, next_token, number, number32};
use crate::key::KEY_MAX_BYTES;
use crate::store::{Counter, PutMode};

/// What the longest key in base64 may decode to, padding included.
const DECODED_MAX_BYTES: usize = KEY_MAX_BYTES.next_multiple_of(3);

/// Longest opaque token, in bytes.
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

impl MetaKind {
    fn flags(self) -> &'static [u8] {
        match self {
            MetaKind::Get => b"bcfhklOqstuvNRTPL",
            MetaKind::Set => b"bcCFIkOqTMSPL",
            MetaKind::Delete => b"bCIkOqTPL",
            MetaKind::Arithmetic => b"bcCDIJkMNOqtTvPL",
            MetaKind::Debug => b"bPL",
        }
    }
}

/// A parsed meta command.
#[derive(Debug)]
pub(crate) struct Meta<'a> {
    pub(super) kind: MetaKind,
    /// The key as written; it is what is echoed.
    pub(super) key_text: &'a [u8],
    decoded: Option<([u8; DECODED_MAX_BYTES], usize)>,
    /// The flags as written: the reply repeats them in order.
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
    pub(super) recache_below_s: Option<u64>,
    pub(super) mode: PutMode,
    pub(super) by: Counter,
    pub(super) initial: u64,
}

impl<'a> Meta<'a> {
    /// The key's bytes.
    pub(super) fn key(&self) -> &[u8] {
        match &self.decoded {
            Some((bytes, len)) => &bytes[..*len],
            None => self.key_text,
        }
    }

    /// The flags as written, one token each.
    pub(super) fn flags(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.flags_text;
        std::iter::from_fn(move || Some(next_token(&mut rest)).filter(|token| !token.is_empty()))
    }

    /// Reads what follows the verb.
    pub(super) fn parse(kind: MetaKind, mut rest: &'a [u8]) -> Result<Meta<'a>, Refusal> {
        let key_text = next_token(&mut rest);
        if key_text.is_empty() {
            return Err(if kind == MetaKind::Debug { ERROR.into() } else { BAD_FORMAT.into() });
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
            recache_below_s: None,
            mode: PutMode::Set,
            by: Counter::Increment(1),
            initial: 0,
        };
        meta.read_flags().map_err(|reply| Refusal { reply, skip_bytes })?;
        Ok(meta)
    }

    fn read_flags(&mut self) -> Result<(), &'static [u8]> {
        let (mut seen, mut delta, mut increment, mut is_base64) = (0u128, 1, true, false);
        for token in self.flags() {
            let (flag, argument) = (token[0], &token[1..]);
            if !self.kind.flags().contains(&flag) {
                return Err(INVALID_FLAG);
            }
            if seen & (1 << flag) != 0 {
                return Err(DUPLICATE_FLAG);
            }
            seen |= 1 << flag;
            match flag {
                b'b' => is_base64 = true,
                b'q' => self.quiet = true,
                b'v' => self.wants_value = true,
                b'u' => self.keep_order = true,
                b'I' => self.invalidate = true,
                b'O' if argument.len() > OPAQUE_MAX_BYTES => return Err(OPAQUE_TOO_LONG),
                b'C' => self.compare_cas = Some(number(argument).ok_or(BAD_TOKEN)?),
                b'F' => self.client_flags = number32(argument).ok_or(BAD_TOKEN)?,
                b'T' => self.ttl = Some(Exptime::parse(argument).ok_or(BAD_TOKEN)?),
                b'N' => self.vivify = Some(Exptime::parse(argument).ok_or(BAD_TOKEN)?),
                b'R' => self.recache_below_s = Some(number(argument).ok_or(BAD_TOKEN)?),
                b'J' => self.initial = number(argument).ok_or(BAD_TOKEN)?,
                b'D' => delta = number(argument).ok_or(BAD_TOKEN)?,
                b'M' if self.kind == MetaKind::Arithmetic => increment = counter_mode(argument)?,
                b'M' => self.mode = put_mode(argument)?,
                _ => {}
            }
        }
        self.by = counter(increment, delta);
        if is_base64 {
            let mut bytes = [0; DECODED_MAX_BYTES];
            let len = BASE64.decode_slice(self.key_text, &mut bytes).unwrap_or(0);
            if !(1..=KEY_MAX_BYTES).contains(&len) {
                return Err(BAD_FORMAT);
            }
            self.decoded = Some((bytes, len));
        } else if self.key_text.len() > KEY_MAX_BYTES {
            return Err(BAD_FORMAT);
        }
        Ok(())
    }
}

fn put_mode(argument: &[u8]) -> Result<PutMode, &'static [u8]> {
    Ok(match argument {
        b"E" | b"e" => PutMode::Add,
        b"A" | b"a" => PutMode::Append,
        b"P" | b"p" => PutMode::Prepend,
        b"R" | b"r" => PutMode::Replace,
        b"S" | b"s" => PutMode::Set,
        _ => return Err(BAD_MODE),
    })
}

fn counter_mode(argument: &[u8]) -> Result<bool, &'static [u8]> {
    match argument {
        b"I" | b"i" | b"+" => Ok(true),
        b"D" | b"d" | b"-" => Ok(false),
        _ => Err(BAD_COUNTER_MODE),
    }
}

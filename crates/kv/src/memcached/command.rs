//! What a command line asks for.

use super::meta_flags::{Meta, MetaKind};
use super::target::Retrieval;
use super::text::{Exptime, counter, next_token, number, number32};
use crate::key::KEY_MAX_BYTES;
use crate::store::{Counter, PutMode};

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";

/// A parsed line.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack for one command; a box would allocate for each"
)]
pub(crate) enum Command<'a> {
    /// The line goes on with keys; read key by key.
    Retrieve {
        retrieval: Retrieval,
        with_exptime: bool,
    },
    Store(StoreLine<'a>),
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Count {
        key: &'a [u8],
        by: Counter,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: Exptime,
        noreply: bool,
    },
    Meta(Meta<'a>),
    FlushAll {
        delay: Exptime,
        noreply: bool,
    },
    Stats {
        what: &'a [u8],
    },
    Version,
    Verbosity {
        noreply: bool,
    },
    Noop,
    Quit,
}

/// A storage command before its data block.
#[derive(Debug)]
pub(crate) struct StoreLine<'a> {
    pub(super) key: &'a [u8],
    pub(super) mode: PutMode,
    pub(super) flags: u32,
    pub(super) exptime: Exptime,
    pub(super) len_bytes: u64,
    pub(super) compare_cas: Option<u64>,
    pub(super) noreply: bool,
}

/// A line that is answered with an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reply: &'static [u8],
    /// The length of the data block that follows and must be skipped, when the line tells.
    pub(crate) skip_bytes: Option<u64>,
}

impl From<&'static [u8]> for Refusal {
    fn from(reply: &'static [u8]) -> Self {
        Refusal { reply, skip_bytes: None }
    }
}

impl Command<'_> {
    /// The length of the data block that follows the line.
    pub(super) fn block_bytes(&self) -> Option<u64> {
        match self {
            Command::Store(line) => Some(line.len_bytes),
            Command::Meta(meta) if meta.kind == MetaKind::Set => Some(meta.len_bytes),
            _ => None,
        }
    }

    /// The key, decoded; none for commands without one.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Command::Store(line) => Some(line.key),
            Command::Delete { key, .. } | Command::Count { key, .. } | Command::Touch { key, .. } => {
                Some(key)
            }
            Command::Meta(meta) => Some(meta.key()),
            _ => None,
        }
    }

    /// Whether nothing of the outcome is answered.
    pub(super) fn noreply(&self) -> bool {
        match self {
            Command::Store(StoreLine { noreply, .. })
            | Command::Delete { noreply, .. }
            | Command::Count { noreply, .. }
            | Command::Touch { noreply, .. }
            | Command::FlushAll { noreply, .. }
            | Command::Verbosity { noreply } => *noreply,
            _ => false,
        }
    }
}

/// Reads one line, without its end.
pub(crate) fn parse(line: &[u8]) -> Result<Command<'_>, Refusal> {
    let mut rest = line;
    let verb = next_token(&mut rest);
    match verb {
        b"get" | b"gets" | b"gat" | b"gats" => Ok(retrieval(verb)),
        b"set" => store(PutMode::Set, false, rest),
        b"add" => store(PutMode::Add, false, rest),
        b"replace" => store(PutMode::Replace, false, rest),
        b"append" => store(PutMode::Append, false, rest),
        b"prepend" => store(PutMode::Prepend, false, rest),
        b"cas" => store(PutMode::Set, true, rest),
        b"mg" => Meta::parse(MetaKind::Get, rest).map(Command::Meta),
        b"ms" => Meta::parse(MetaKind::Set, rest).map(Command::Meta),
        b"md" => Meta::parse(MetaKind::Delete, rest).map(Command::Meta),
        b"ma" => Meta::parse(MetaKind::Arithmetic, rest).map(Command::Meta),
        b"me" => Meta::parse(MetaKind::Debug, rest).map(Command::Meta),
        b"mn" => Ok(Command::Noop),
        b"delete" => delete(rest),
        b"incr" => count(true, rest),
        b"decr" => count(false, rest),
        b"touch" => touch(rest),
        b"flush_all" => flush_all(rest),
        b"stats" => Ok(Command::Stats { what: next_token(&mut rest) }),
        b"version" => Ok(Command::Version),
        b"verbosity" => verbosity(rest),
        b"quit" => Ok(Command::Quit),
        _ => Err(ERROR.into()),
    }
}

/// The retrieval a verb stands for; the verb must be one.
pub(super) fn retrieval<'a>(verb: &[u8]) -> Command<'a> {
    let retrieval = Retrieval { with_cas: verb.ends_with(b"s"), touch: None };
    Command::Retrieve { retrieval, with_exptime: verb.starts_with(b"gat") }
}

/// A key of legal length.
pub(super) fn key(token: &[u8]) -> Result<&[u8], Refusal> {
    match token.len() {
        0 => Err(ERROR.into()),
        1..=KEY_MAX_BYTES => Ok(token),
        _ => Err(BAD_FORMAT.into()),
    }
}

fn store(mode: PutMode, with_cas: bool, mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let key_token = next_token(&mut rest);
    let (flags, exptime, len_token) = (next_token(&mut rest), next_token(&mut rest), next_token(&mut rest));
    if len_token.is_empty() {
        return Err(ERROR.into());
    }
    if len_token.starts_with(b"-") {
        return Err(BAD_CHUNK.into());
    }
    let len_bytes = number(len_token).ok_or(Refusal::from(BAD_FORMAT))?;
    // From here on the block's length is known: whatever else is wrong, the block is no command.
    let refuse = |reply| Refusal { reply, skip_bytes: Some(len_bytes) };
    let compare_cas = match with_cas {
        true => Some(number(next_token(&mut rest)).ok_or(refuse(BAD_FORMAT))?),
        false => None,
    };
    let key = key(key_token).map_err(|refusal| refuse(refusal.reply))?;
    let flags = number32(flags).ok_or(refuse(BAD_FORMAT))?;
    let exptime = Exptime::parse(exptime).ok_or(refuse(BAD_FORMAT))?;
    let noreply = noreply(&mut rest);
    Ok(Command::Store(StoreLine { key, mode, flags, exptime, len_bytes, compare_cas, noreply }))
}

fn delete(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let key = key(next_token(&mut rest))?;
    // Old clients send a time of zero.
    match next_token(&mut rest) {
        b"" => Ok(Command::Delete { key, noreply: false }),
        b"noreply" => Ok(Command::Delete { key, noreply: true }),
        b"0" => Ok(Command::Delete { key, noreply: noreply(&mut rest) }),
        _ => Err(BAD_DELETE.into()),
    }
}

fn count(increment: bool, mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let (key_token, delta) = (next_token(&mut rest), next_token(&mut rest));
    if delta.is_empty() {
        return Err(ERROR.into());
    }
    let key = key(key_token)?;
    let delta = number(delta).ok_or(Refusal::from(BAD_DELTA))?;
    Ok(Command::Count { key, by: counter(increment, delta), noreply: noreply(&mut rest) })
}

fn touch(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let (key_token, exptime) = (next_token(&mut rest), next_token(&mut rest));
    if exptime.is_empty() {
        return Err(ERROR.into());
    }
    let key = key(key_token)?;
    let exptime = Exptime::parse(exptime).ok_or(Refusal::from(BAD_EXPTIME))?;
    Ok(Command::Touch { key, exptime, noreply: noreply(&mut rest) })
}

fn flush_all(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let now = Exptime::from_seconds(0);
    match next_token(&mut rest) {
        b"" => Ok(Command::FlushAll { delay: now, noreply: false }),
        b"noreply" => Ok(Command::FlushAll { delay: now, noreply: true }),
        delay => {
            let delay = Exptime::parse(delay).ok_or(Refusal::from(BAD_EXPTIME))?;
            Ok(Command::FlushAll { delay, noreply: noreply(&mut rest) })
        }
    }
}

fn verbosity(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    match next_token(&mut rest) {
        b"" => Err(ERROR.into()),
        b"noreply" => Ok(Command::Verbosity { noreply: true }),
        _ => Ok(Command::Verbosity { noreply: noreply(&mut rest) }),
    }
}

fn noreply(rest: &mut &[u8]) -> bool {
    next_token(rest) == b"noreply"
}

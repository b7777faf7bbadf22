//! Parser of command lines.

mod admin;

use super::change::Change;
use super::meta_flags::{Meta, MetaKind};
use super::refusal::{BAD_DELETE, BAD_DELTA, BAD_EXPTIME, BAD_FORMAT, ERROR, OK, Refusal};
use super::stats::{Report, VERSION_LINE};
use super::text::{Exptime, block_bytes, counter, last_token, next_token, number, number32};
use crate::key::KEY_MAX_BYTES;
use crate::store::{Counter, PutMode};

/// A parsed line.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack for one command; a box would allocate for each"
)]
pub(crate) enum Command<'a> {
    /// The rest of the line contains keys, which are read one by one.
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
    /// Changes all partitions, then replies.
    Everywhere {
        change: Change,
        reply: &'static [u8],
    },
    Report(Report),
    ListPrefixes,
    ListConnections,
    /// Lists all items, or at most `items_max` of the connection's partition.
    Dump {
        items_max: Option<u64>,
    },
    /// Replies without any other effect.
    Reply(&'static [u8]),
    Quit,
}

/// Options for the keys of one retrieval command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retrieval {
    /// `true` if the reply contains the version (`gets`, `gats`).
    pub with_cas: bool,
    /// New expiration time of the item (`gat`, `gats`).
    pub touch: Option<Exptime>,
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

impl Command<'_> {
    /// Returns the length of the data block that follows the line.
    pub(super) fn block_bytes(&self) -> Option<u64> {
        match self {
            Command::Store(line) => Some(line.len_bytes),
            Command::Meta(meta) if meta.kind == MetaKind::Set => Some(meta.len_bytes),
            _ => None,
        }
    }

    /// Returns whether the command stores a value unconditionally.
    pub(super) fn overwrites(&self) -> bool {
        match self {
            Command::Store(line) => line.mode == PutMode::Set && line.compare_cas.is_none(),
            // memcached counts a meta set as a set in every mode.
            Command::Meta(_) => true,
            _ => false,
        }
    }

    /// Returns the decoded key; `None` for commands without one.
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

    /// Returns whether the command has no reply.
    pub(super) fn noreply(&self) -> bool {
        match self {
            Command::Store(StoreLine { noreply, .. })
            | Command::Delete { noreply, .. }
            | Command::Count { noreply, .. }
            | Command::Touch { noreply, .. } => *noreply,
            _ => false,
        }
    }
}

/// Parses one line, which is passed without its end.
pub(crate) fn parse(line: &[u8]) -> Result<Command<'_>, Refusal> {
    parse_verb(line).map_err(|refusal| match refusal.reply {
        // With a wrong number of fields the meaning of the last one is unknown; memcached replies in this case, too.
        ERROR => refusal,
        _ if is_silent(line) => Refusal { reply: b"", ..refusal },
        _ => refusal,
    })
}

/// Returns whether the client reads no reply; it would mistake a reply for that to its next command.
fn is_silent(line: &[u8]) -> bool {
    let is_meta = line.starts_with(b"m");
    !is_meta && last_token(line) == b"noreply"
}

fn parse_verb(line: &[u8]) -> Result<Command<'_>, Refusal> {
    let mut rest = line;
    let verb = next_token(&mut rest);
    match verb {
        b"get" | b"gets" | b"gat" | b"gats" => Ok(retrieval(verb)),
        b"set" => store(PutMode::Set, rest),
        b"add" => store(PutMode::Add, rest),
        b"replace" => store(PutMode::Replace, rest),
        b"append" => store(PutMode::Append, rest),
        b"prepend" => store(PutMode::Prepend, rest),
        b"cas" => compare_and_swap(rest),
        b"mg" => Meta::parse(MetaKind::Get, rest).map(Command::Meta),
        b"ms" => Meta::parse(MetaKind::Set, rest).map(Command::Meta),
        b"md" => Meta::parse(MetaKind::Delete, rest).map(Command::Meta),
        b"ma" => Meta::parse(MetaKind::Arithmetic, rest).map(Command::Meta),
        b"me" => Meta::parse(MetaKind::Debug, rest).map(Command::Meta),
        b"mn" => Ok(Command::Reply(b"MN\r\n")),
        b"delete" => delete(rest),
        b"incr" => count(true, rest),
        b"decr" => count(false, rest),
        b"touch" => touch(rest),
        b"flush_all" => flush_all(rest),
        b"stats" => admin::stats(rest),
        b"version" => Ok(Command::Reply(VERSION_LINE)),
        b"verbosity" => admin::verbosity(rest),
        b"cache_memlimit" => admin::cache_memlimit(rest),
        b"slabs" => admin::slabs(rest),
        b"lru_crawler" => admin::lru_crawler(rest),
        b"shutdown" => Err((&b"ERROR: shutdown not enabled\r\n"[..]).into()),
        b"quit" => Ok(Command::Quit),
        // An HTTP request that a web page caused: the following lines are under the page's control and could be
        // commands.
        _ if last_token(line).starts_with(b"HTTP/") => Ok(Command::Quit),
        _ => Err(ERROR.into()),
    }
}

/// Returns the retrieval command of a verb, which must be one.
pub(super) fn retrieval<'a>(verb: &[u8]) -> Command<'a> {
    let retrieval = Retrieval { with_cas: verb.ends_with(b"s"), touch: None };
    Command::Retrieve { retrieval, with_exptime: verb.starts_with(b"gat") }
}

/// Returns a key of valid length.
fn key(token: &[u8]) -> Result<&[u8], Refusal> {
    match token.len() {
        0 => Err(ERROR.into()),
        1..=KEY_MAX_BYTES => Ok(token),
        _ => Err(BAD_FORMAT.into()),
    }
}

/// Returns the `N` fields of a command, and whether `noreply` follows them.
fn fields<const N: usize>(mut rest: &[u8]) -> Result<([&[u8]; N], bool), Refusal> {
    let fields = std::array::from_fn(|_| next_token(&mut rest));
    let last = next_token(&mut rest);
    let too_few = fields.last().is_some_and(|field: &&[u8]| field.is_empty());
    if too_few || (!last.is_empty() && !next_token(&mut rest).is_empty()) {
        return Err(ERROR.into());
    }
    Ok((fields, last == b"noreply"))
}

fn store(mode: PutMode, rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let ([key, flags, exptime, len], noreply) = fields(rest)?;
    store_line(mode, [key, flags, exptime, len], None, noreply)
}

fn compare_and_swap(rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let ([key, flags, exptime, len, cas], noreply) = fields(rest)?;
    store_line(PutMode::Set, [key, flags, exptime, len], Some(cas), noreply)
}

fn store_line<'a>(
    mode: PutMode,
    [key_token, flags, exptime, len]: [&'a [u8]; 4],
    cas: Option<&[u8]>,
    noreply: bool,
) -> Result<Command<'a>, Refusal> {
    let len_bytes = block_bytes(len)?;
    // The length of the block is known from here on, so that the block is never parsed as commands if another field is
    // invalid.
    let refuse = |reply| Refusal { reply, skip_bytes: Some(len_bytes) };
    let compare_cas = match cas {
        Some(token) => Some(number(token).ok_or(refuse(BAD_FORMAT))?),
        None => None,
    };
    let key = key(key_token).map_err(|refusal| refuse(refusal.reply))?;
    let flags = number32(flags).ok_or(refuse(BAD_FORMAT))?;
    let exptime = Exptime::parse(exptime).ok_or(refuse(BAD_FORMAT))?;
    Ok(Command::Store(StoreLine { key, mode, flags, exptime, len_bytes, compare_cas, noreply }))
}

fn delete(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let key_token = next_token(&mut rest);
    // Old clients send a time of zero.
    let noreply = match [next_token(&mut rest), next_token(&mut rest), next_token(&mut rest)] {
        [b"", ..] | [b"0", b"", _] => false,
        [b"noreply", b"", _] | [b"0", b"noreply", b""] => true,
        [_, _, b""] => return Err(BAD_DELETE.into()),
        _ => return Err(ERROR.into()),
    };
    Ok(Command::Delete { key: key(key_token)?, noreply })
}

fn count(increment: bool, rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let ([key_token, delta], noreply) = fields(rest)?;
    let key = key(key_token)?;
    let delta = number(delta).ok_or(Refusal::from(BAD_DELTA))?;
    Ok(Command::Count { key, by: counter(increment, delta), noreply })
}

fn touch(rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let ([key_token, exptime], noreply) = fields(rest)?;
    let key = key(key_token)?;
    let exptime = Exptime::parse(exptime).ok_or(Refusal::from(BAD_EXPTIME))?;
    Ok(Command::Touch { key, exptime, noreply })
}

fn flush_all(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let (delay, noreply) = match [next_token(&mut rest), next_token(&mut rest), next_token(&mut rest)] {
        [b"", ..] => (Exptime::NOW, false),
        [b"noreply", b"", _] => (Exptime::NOW, true),
        [delay, last, b""] => (Exptime::parse(delay).ok_or(Refusal::from(BAD_EXPTIME))?, last == b"noreply"),
        _ => return Err(ERROR.into()),
    };
    Ok(Command::Everywhere { change: Change::FlushAll(delay), reply: unless(noreply, OK) })
}

/// Returns the reply, or an empty one after `noreply`.
fn unless(noreply: bool, reply: &'static [u8]) -> &'static [u8] {
    if noreply { b"" } else { reply }
}

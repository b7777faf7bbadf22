//! The administrative commands of memcached. Commands without a counterpart here are refused as by a memcached in
//! which they are disabled.

use super::{Command, fields, unless};
use crate::memcached::change::Change;
use crate::memcached::refusal::{BAD_FORMAT, ERROR, OK, Refusal};
use crate::memcached::stats::Report;
use crate::memcached::text::{last_token, next_token, number32};

pub(super) fn stats(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    Ok(match next_token(&mut rest) {
        b"" => Command::Report(Report::General),
        b"settings" => Command::Report(Report::Settings),
        b"items" => Command::Report(Report::Items),
        b"slabs" => Command::Report(Report::Slabs),
        b"sizes" => Command::Reply(b"STAT sizes_status disabled\r\nEND\r\n"),
        b"reset" => Command::Everywhere { change: Change::ResetStats, reply: b"RESET\r\n" },
        b"detail" => return detail(next_token(&mut rest)),
        b"conns" => Command::ListConnections,
        b"cachedump" => return cachedump([next_token(&mut rest), next_token(&mut rest)]),
        _ => return Err(ERROR.into()),
    })
}

/// Counts the commands for each prefix of keys from `on` to `off`, and lists the counts.
fn detail(what: &[u8]) -> Result<Command<'_>, Refusal> {
    let count = |counting| Command::Everywhere { change: Change::CountPrefixes(counting), reply: OK };
    match what {
        b"on" => Ok(count(true)),
        b"off" => Ok(count(false)),
        b"dump" => Ok(Command::ListPrefixes),
        _ => Err((&b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"[..]).into()),
    }
}

fn cachedump([class, items_max]: [&[u8]; 2]) -> Result<Command<'static>, Refusal> {
    if items_max.is_empty() {
        return Err((&b"CLIENT_ERROR bad command line\r\n"[..]).into());
    }
    match (number32(class), number32(items_max)) {
        (Some(1), Some(0)) => Ok(Command::Dump { items_max: Some(u64::MAX) }),
        (Some(1), Some(items_max)) => Ok(Command::Dump { items_max: Some(items_max.into()) }),
        (Some(..64), Some(_)) => Ok(Command::Reply(b"END\r\n")),
        (Some(_), Some(_)) => Err((&b"CLIENT_ERROR Illegal slab id\r\n"[..]).into()),
        _ => Err(BAD_FORMAT.into()),
    }
}

/// Accepts the level without effect. Tokens after the level are ignored, except a final `noreply`.
pub(super) fn verbosity(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let noreply = last_token(rest) == b"noreply";
    let level = next_token(&mut rest);
    if level.is_empty() {
        return Err(ERROR.into());
    }
    number32(level).ok_or(Refusal::from(BAD_FORMAT))?;
    Ok(Command::Reply(unless(noreply, OK)))
}

/// Limits the memory for items. All memory is mapped at the start and stays mapped.
pub(super) fn cache_memlimit(rest: &[u8]) -> Result<Command<'_>, Refusal> {
    let ([mebibytes], noreply) = fields(rest)?;
    Err(match number32(mebibytes) {
        None => ERROR,
        Some(..8) => &b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"[..],
        Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
        Some(mebibytes) => {
            let change = Change::LimitMemory { limit_bytes: u64::from(mebibytes) << 20 };
            return Ok(Command::Everywhere { change, reply: unless(noreply, OK) });
        }
    }
    .into())
}

/// Refuses reassignment: memory moves between sizes automatically, and there are no pages.
pub(super) fn slabs(mut rest: &[u8]) -> Result<Command<'_>, Refusal> {
    match next_token(&mut rest) {
        b"reassign" => Err((&b"CLIENT_ERROR slab reassignment disabled\r\n"[..]).into()),
        b"automove" => {
            let ([level], noreply) = fields(rest)?;
            match number32(level) {
                Some(..=2) => Ok(Command::Reply(unless(noreply, OK))),
                Some(_) => Err(ERROR.into()),
                None => Err(BAD_FORMAT.into()),
            }
        }
        _ => Err(ERROR.into()),
    }
}

/// Lists items. There is no crawler to control, because expired items are swept continuously.
pub(super) fn lru_crawler(rest: &[u8]) -> Result<Command<'_>, Refusal> {
    match fields(rest)? {
        ([b"metadump", b"all" | b"hash" | b"1"], _) => Ok(Command::Dump { items_max: None }),
        ([b"metadump", _], _) => Err((&b"BADCLASS invalid class id\r\n"[..]).into()),
        _ => Err(ERROR.into()),
    }
}

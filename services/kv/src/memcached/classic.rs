//! The single-key commands of the text protocol, executed on the partition that owns the key.

use super::command::{Command, Retrieval, StoreLine};
use super::refusal::{counter_refusal, refusal};
use super::text::push_number;
use crate::key::Key;
use crate::store::{Item, Outcome, Partition, Put};

/// Executes a storage command with its data.
pub(super) fn store(
    line: &StoreLine<'_>,
    key: &Key<'_>,
    value: &[u8],
    partition: &mut Partition,
    now_ms: u64,
) -> &'static [u8] {
    let put = Put {
        value,
        flags: line.flags,
        expires_ms: line.exptime.to_ms(now_ms, partition.wall()),
        mode: line.mode,
        compare_cas: line.compare_cas,
        stale_if_older: false,
    };
    match partition.put(key, &put, now_ms) {
        Ok(Outcome::Stored { .. }) => b"STORED\r\n",
        Ok(Outcome::NotStored) => b"NOT_STORED\r\n",
        Ok(Outcome::Exists) => b"EXISTS\r\n",
        Ok(Outcome::NotFound) => b"NOT_FOUND\r\n",
        Err(error) => refusal(error),
    }
}

/// Executes `delete`, `incr`, `decr` or `touch` and writes the reply.
pub(super) fn change(
    command: &Command<'_>,
    key: &Key<'_>,
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
    let reply = match *command {
        Command::Delete { .. } => match partition.delete(key, None, now_ms) {
            Outcome::Stored { .. } => b"DELETED\r\n",
            _ => NOT_FOUND,
        },
        Command::Touch { exptime, .. } => {
            match partition.touch(key, exptime.to_ms(now_ms, partition.wall()), now_ms) {
                true => b"TOUCHED\r\n",
                false => NOT_FOUND,
            }
        }
        Command::Count { by, .. } => match partition.count(key, by, now_ms) {
            Ok(Some((number, _))) => {
                push_number(out, number);
                b"\r\n"
            }
            Ok(None) => NOT_FOUND,
            Err(error) => counter_refusal(error),
        },
        ref other => unreachable!("{other:?} is no single-key change"),
    };
    out.extend_from_slice(reply);
}

/// Looks up one key of a retrieval and writes its value; writes nothing on a miss.
pub(crate) fn get(
    key: &Key<'_>,
    retrieval: Retrieval,
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let found = match retrieval.touch {
        Some(exptime) => partition.get_and_touch(key, exptime.to_ms(now_ms, partition.wall()), now_ms),
        None => partition.get(key, now_ms),
    };
    let hit = found.is_some();
    if let Some(item) = found {
        write_item(key, &item, retrieval, out);
    }
    partition.prefixes.note(key.bytes(), |counts| {
        counts.gets += 1;
        counts.hits += u64::from(hit);
    });
}

#[inline]
fn write_item(key: &Key<'_>, item: &Item<'_>, retrieval: Retrieval, out: &mut Vec<u8>) {
    out.reserve(key.bytes().len() + item.value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key.bytes());
    out.push(b' ');
    push_number(out, u64::from(item.flags));
    out.push(b' ');
    push_number(out, item.value.len() as u64);
    if retrieval.with_cas {
        out.push(b' ');
        push_number(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
}

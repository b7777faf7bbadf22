//! The meta commands, executed on the partition that owns the key.

use super::meta_flags::{Meta, MetaKind};
use super::refusal::{counter_refusal, refusal};
use super::text::{push_number, push_signed};
use crate::key::Key;
use crate::store::{Invalidation, MetaGet, MetaItem, Outcome, Partition, Put, PutMode};

/// Executes a meta command with its data (empty but for `ms`) and writes the reply.
pub(super) fn execute(
    meta: &Meta<'_>,
    key: &Key<'_>,
    data: &[u8],
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    match meta.kind {
        MetaKind::Get => get(meta, key, partition, now_ms, out),
        MetaKind::Set => set(meta, key, data, partition, now_ms, out),
        MetaKind::Delete => delete(meta, key, partition, now_ms, out),
        MetaKind::Arithmetic => arithmetic(meta, key, partition, now_ms, out),
        MetaKind::Debug => debug(meta, key, partition, now_ms, out),
    }
}

fn get(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    let wish = MetaGet {
        keep_order: meta.keep_order,
        touch_ms: meta.ttl.map(|ttl| ttl.to_ms(now_ms, partition.wall())),
        vivify_ms: meta.vivify.map(|ttl| ttl.to_ms(now_ms, partition.wall())),
        recache_below_ms: meta.recache_below_s.map(|seconds| seconds.saturating_mul(1000)),
    };
    let found = match partition.meta_get(key, &wish, now_ms) {
        Ok(Some(found)) => found,
        Ok(None) if meta.quiet => return,
        Ok(None) => return miss(meta, out),
        Err(error) => return out.extend_from_slice(refusal(error)),
    };
    if meta.wants_value {
        out.extend_from_slice(b"VA ");
        push_number(out, found.item.value.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    push_item_flags(meta, &found, now_ms, out);
    if found.won {
        out.extend_from_slice(b" W");
    }
    if found.stale {
        out.extend_from_slice(b" X");
    }
    if found.win_sent {
        out.extend_from_slice(b" Z");
    }
    out.extend_from_slice(b"\r\n");
    if meta.wants_value {
        out.extend_from_slice(found.item.value);
        out.extend_from_slice(b"\r\n");
    }
}

fn miss(meta: &Meta<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"EN");
    meta.flags().for_each(|token| push_echo(meta, token, out));
    out.extend_from_slice(b"\r\n");
}

fn push_item_flags(meta: &Meta<'_>, found: &MetaItem<'_>, now_ms: u64, out: &mut Vec<u8>) {
    for token in meta.flags() {
        match token[0] {
            b'c' => push_flag(b'c', found.item.cas, out),
            b'f' => push_flag(b'f', u64::from(found.item.flags), out),
            b'h' => push_flag(b'h', u64::from(found.fetched), out),
            b'l' => push_flag(b'l', (now_ms / 1000).saturating_sub(u64::from(found.accessed_s)), out),
            b's' => push_flag(b's', found.item.value.len() as u64, out),
            b't' => push_ttl(found.item.expires_ms, now_ms, out),
            _ => push_echo(meta, token, out),
        }
    }
}

fn set(
    meta: &Meta<'_>,
    key: &Key<'_>,
    data: &[u8],
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let put = Put {
        value: data,
        flags: meta.client_flags,
        expires_ms: meta.ttl.map_or(0, |ttl| ttl.to_ms(now_ms, partition.wall())),
        mode: meta.mode,
        compare_cas: meta.compare_cas,
        stale_if_older: meta.invalidate,
    };
    match partition.put(key, &put, now_ms) {
        Ok(outcome) => finish(meta, outcome, out),
        Err(error) => out.extend_from_slice(refusal(error)),
    }
}

fn delete(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    let outcome = if meta.invalidate {
        let touch_ms = meta.ttl.map(|ttl| ttl.to_ms(now_ms, partition.wall()));
        partition.invalidate(key, &Invalidation { compare_cas: meta.compare_cas, touch_ms }, now_ms)
    } else {
        partition.delete(key, meta.compare_cas, now_ms)
    };
    finish(meta, outcome, out);
}

/// Writes the reply of a change: code, then the flags that are echoed.
fn finish(meta: &Meta<'_>, outcome: Outcome, out: &mut Vec<u8>) {
    let (code, cas) = match outcome {
        Outcome::Stored { .. } if meta.quiet => return,
        Outcome::Stored { cas } => (b"HD", cas),
        Outcome::NotStored => (b"NS", 0),
        Outcome::Exists => (b"EX", 0),
        Outcome::NotFound => (b"NF", 0),
    };
    out.extend_from_slice(code);
    for token in meta.flags() {
        match token[0] {
            b'c' => push_flag(b'c', cas, out),
            _ => push_echo(meta, token, out),
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn arithmetic(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    if let Some(wanted) = meta.compare_cas {
        match partition.peek(key, now_ms) {
            Some(item) if item.cas != wanted => return finish(meta, Outcome::Exists, out),
            _ => {}
        }
    }
    let (number, cas) = match partition.count(key, meta.by, now_ms) {
        Ok(Some(counted)) => counted,
        Ok(None) => match vivify(meta, key, partition, now_ms) {
            Ok(Some(created)) => created,
            Ok(None) => return finish(meta, Outcome::NotFound, out),
            Err(reply) => return out.extend_from_slice(reply),
        },
        Err(error) => return out.extend_from_slice(counter_refusal(error)),
    };
    if let Some(ttl) = meta.ttl {
        partition.touch(key, ttl.to_ms(now_ms, partition.wall()), now_ms);
    }
    if meta.quiet {
        return;
    }
    let expires_ms = partition.peek(key, now_ms).map_or(1, |item| item.expires_ms);
    push_number_reply(meta, number, cas, expires_ms, now_ms, out);
}

/// Creates the missing number when the command asks for it; the number and version.
fn vivify(
    meta: &Meta<'_>,
    key: &Key<'_>,
    partition: &mut Partition,
    now_ms: u64,
) -> Result<Option<(u64, u64)>, &'static [u8]> {
    let Some(ttl) = meta.vivify else { return Ok(None) };
    let mut digits = [0; 20];
    let value = crate::store::format_decimal(meta.initial, &mut digits);
    let put =
        Put { value, expires_ms: ttl.to_ms(now_ms, partition.wall()), mode: PutMode::Add, ..Put::default() };
    match partition.put(key, &put, now_ms) {
        Ok(Outcome::Stored { cas }) => Ok(Some((meta.initial, cas))),
        Ok(_) => Ok(None),
        Err(error) => Err(refusal(error)),
    }
}

fn push_number_reply(
    meta: &Meta<'_>,
    number: u64,
    cas: u64,
    expires_ms: u64,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let mut digits = [0; 20];
    let digits = crate::store::format_decimal(number, &mut digits);
    if meta.wants_value {
        out.extend_from_slice(b"VA ");
        push_number(out, digits.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    for token in meta.flags() {
        match token[0] {
            b'c' => push_flag(b'c', cas, out),
            b't' => push_ttl(expires_ms, now_ms, out),
            _ => push_echo(meta, token, out),
        }
    }
    out.extend_from_slice(b"\r\n");
    if meta.wants_value {
        out.extend_from_slice(digits);
        out.extend_from_slice(b"\r\n");
    }
}

fn debug(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    let Some(found) = partition.inspect(key, now_ms) else {
        return out.extend_from_slice(b"EN\r\n");
    };
    out.extend_from_slice(b"ME ");
    out.extend_from_slice(meta.key_text);
    out.extend_from_slice(b" exp=");
    push_signed(out, ttl_s(found.item.expires_ms, now_ms));
    out.extend_from_slice(b" la=");
    push_number(out, (now_ms / 1000).saturating_sub(u64::from(found.accessed_s)));
    out.extend_from_slice(b" cas=");
    push_number(out, found.item.cas);
    out.extend_from_slice(if found.fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=0 size=");
    push_number(out, found.size_bytes as u64);
    out.extend_from_slice(b"\r\n");
}

/// Repeats a flag that only the client understands: opaque, key, base64.
fn push_echo(meta: &Meta<'_>, token: &[u8], out: &mut Vec<u8>) {
    match token[0] {
        b'O' | b'b' => {
            out.push(b' ');
            out.extend_from_slice(token);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            out.extend_from_slice(meta.key_text);
        }
        _ => {}
    }
}

fn push_flag(flag: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', flag]);
    push_number(out, number);
}

fn push_ttl(expires_ms: u64, now_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b" t");
    push_signed(out, ttl_s(expires_ms, now_ms));
}

/// Seconds left, rounded up so that a live item never shows zero; -1: no end.
fn ttl_s(expires_ms: u64, now_ms: u64) -> i64 {
    if expires_ms == 0 { -1 } else { expires_ms.saturating_sub(now_ms).div_ceil(1000) as i64 }
}

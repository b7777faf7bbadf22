//! The meta commands, executed on the partition that owns the key.

use super::meta_flags::{Meta, MetaKind};
use super::refusal::{counter_refusal, refusal};
use super::text::{Exptime, push_number, push_signed};
use crate::key::Key;
use crate::store::{Invalidation, MetaGet, MetaItem, Outcome, Partition, Put};

/// Executes a meta command with its data (empty except for `ms`) and writes the reply.
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
    let wall = partition.wall();
    let at_ms = |time: Exptime| time.to_ms(now_ms, wall);
    let (touch_ms, vivify_ms) = (meta.ttl.map(at_ms), meta.vivify.map(at_ms));
    let place = |flag| meta.flags().position(|token| token[0] == flag);
    let wish = MetaGet {
        keep_order: meta.keep_order,
        touch_ms,
        // If both times are given, a new item gets the one whose token comes last.
        vivify_ms: vivify_ms.and(if place(b'T') > place(b'N') { touch_ms } else { vivify_ms }),
        recache_before_ms: meta.recache_before.map(at_ms),
        touches_first: place(b'T') < place(b'R'),
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
    push_item_flags(meta, &found, [touch_ms, vivify_ms.filter(|_| found.created)], now_ms, out);
    if found.win_sent {
        out.extend_from_slice(b" Z");
    }
    if found.stale {
        out.extend_from_slice(b" X");
    }
    if found.won {
        out.extend_from_slice(b" W");
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

/// Writes the values that the flags request, in their order: `t` reports the time set by preceding flags. `set_ms`
/// contains the times that `T` and `N` set.
fn push_item_flags(
    meta: &Meta<'_>,
    found: &MetaItem<'_>,
    set_ms: [Option<u64>; 2],
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let mut expires_ms = found.old_expires_ms;
    for token in meta.flags() {
        match token[0] {
            b'T' => expires_ms = set_ms[0].unwrap_or(expires_ms),
            b'N' => expires_ms = set_ms[1].unwrap_or(expires_ms),
            b'c' => push_flag(b'c', found.item.cas, out),
            b'f' => push_flag(b'f', u64::from(found.item.flags), out),
            b'h' => push_flag(b'h', u64::from(found.fetched), out),
            b'l' => push_flag(b'l', (now_ms / 1000).saturating_sub(u64::from(found.accessed_s)), out),
            b's' => push_flag(b's', found.item.value.len() as u64, out),
            b't' => push_ttl(expires_ms, now_ms, out),
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

/// Writes the reply to a change: the code, then the echoed flags.
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
            // Only a change of the value returns a version.
            b'c' if meta.kind == MetaKind::Set => push_flag(b'c', cas, out),
            _ => push_echo(meta, token, out),
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn arithmetic(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    let old = partition.peek(key, now_ms);
    if let (Some(wanted), Some(item)) = (meta.compare_cas.filter(|&wanted| wanted != 0), &old)
        && item.cas != wanted
        && !item.value.is_empty()
    {
        return finish(meta, Outcome::Exists, out);
    }
    let old_expires_ms = old.map_or(0, |item| item.expires_ms);
    if old.is_none() && meta.vivify.is_some() {
        return vivify(meta, key, partition, now_ms, out);
    }
    let (number, cas) = match partition.count(key, meta.by, now_ms) {
        Ok(Some(counted)) => counted,
        Ok(None) => return finish(meta, Outcome::NotFound, out),
        Err(error) => return out.extend_from_slice(counter_refusal(error)),
    };
    let touch_ms = meta.ttl.map(|ttl| ttl.to_ms(now_ms, partition.wall()));
    if let Some(touch_ms) = touch_ms {
        partition.set_time(key, touch_ms, now_ms);
    }
    if !meta.quiet {
        push_number_reply(meta, number, cas, [old_expires_ms, touch_ms.unwrap_or(0), 0], now_ms, out);
    }
}

/// Creates the missing number and writes the reply, even in quiet mode.
fn vivify(meta: &Meta<'_>, key: &Key<'_>, partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    let at_ms = |time: Option<Exptime>| time.map_or(0, |time| time.to_ms(now_ms, partition.wall()));
    let times_ms = [0, at_ms(meta.ttl), at_ms(meta.vivify)];
    // If both times are given, the number gets the one whose token comes last.
    let last = meta.flags().filter(|token| matches!(token[0], b'T' | b'N')).last();
    let expires_ms = if last.is_some_and(|token| token[0] == b'T') { times_ms[1] } else { times_ms[2] };
    let mut digits = [0; 20];
    let value = crate::store::format_decimal(meta.initial, &mut digits);
    match partition.create(key, &Put { value, expires_ms, ..Put::default() }, now_ms) {
        Ok(Some(cas)) => push_number_reply(meta, meta.initial, cas, times_ms, now_ms, out),
        Ok(None) => finish(meta, Outcome::NotStored, out),
        Err(error) => out.extend_from_slice(refusal(error)),
    }
}

/// Writes a number. `times_ms` contains its expiration time before the flags take effect, and the times that `T` and
/// `N` set.
fn push_number_reply(
    meta: &Meta<'_>,
    number: u64,
    cas: u64,
    times_ms: [u64; 3],
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let is_new = meta.vivify.is_some() && times_ms[2] != 0;
    let mut expires_ms = times_ms[0];
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
            b'T' => expires_ms = times_ms[1],
            b'N' if is_new => expires_ms = times_ms[2],
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

/// Echoes data that only the client interprets: the opaque token, and the key, followed by the base64 mark.
fn push_echo(meta: &Meta<'_>, token: &[u8], out: &mut Vec<u8>) {
    match token[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(token);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            meta.push_key(out);
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

/// Returns the remaining seconds, rounded up so that a live item never shows zero; -1 without expiration.
fn ttl_s(expires_ms: u64, now_ms: u64) -> i64 {
    if expires_ms == 0 { -1 } else { expires_ms.saturating_sub(now_ms).div_ceil(1000) as i64 }
}

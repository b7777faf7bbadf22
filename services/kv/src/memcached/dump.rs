//! The listings of items for `lru_crawler metadump` and `stats cachedump`.

use super::text::{push_number, push_signed};
use crate::store::Partition;

/// Writes at most `left` items of a part of the listing, as `stats cachedump` does, and decrements `left`.
pub(crate) fn execute_short(
    part: u64,
    left: &mut u64,
    partition: &Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let part = u32::try_from(part).unwrap_or(u32::MAX);
    for item in partition.listing(part, now_ms).take(usize::try_from(*left).unwrap_or(usize::MAX)) {
        *left -= 1;
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(item.key);
        out.extend_from_slice(b" [");
        push_number(out, item.value_bytes as u64);
        out.extend_from_slice(b" b; ");
        let unix_ms = if item.expires_ms == 0 { 0 } else { partition.wall().to_unix_ms(item.expires_ms) };
        push_number(out, unix_ms / 1000);
        out.extend_from_slice(b" s]\r\n");
    }
}

/// Writes a part of the listing of a partition's items, one per line, as memcached does.
pub(crate) fn execute(part: u32, partition: &Partition, now_ms: u64, out: &mut Vec<u8>) {
    let unix_s = |at_ms: u64| partition.wall().to_unix_ms(at_ms) / 1000;
    for item in partition.listing(part, now_ms) {
        out.extend_from_slice(b"key=");
        push_encoded(out, item.key);
        out.extend_from_slice(b" exp=");
        push_signed(out, if item.expires_ms == 0 { -1 } else { unix_s(item.expires_ms) as i64 });
        out.extend_from_slice(b" la=");
        push_number(out, unix_s(u64::from(item.accessed_s) * 1000));
        out.extend_from_slice(b" cas=");
        push_number(out, item.cas);
        out.extend_from_slice(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
        out.extend_from_slice(b" cls=1 size=");
        push_number(out, item.size_bytes as u64);
        out.push(b'\n');
    }
}

/// Percent-encodes a key as in a URI (RFC 3986, section 2.1).
fn push_encoded(out: &mut Vec<u8>, key: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

//! Base64 of keys (RFC 4648, section 4, with padding): all the meta protocol needs of it.

use crate::key::KEY_MAX_BYTES;

/// Longest encoded key.
pub(super) const ENCODED_MAX_BYTES: usize = KEY_MAX_BYTES.div_ceil(3) * 4;

/// Decodes a key of at most [`KEY_MAX_BYTES`] into `key`; the length, or none for anything malformed.
pub(super) fn decode(text: &[u8], key: &mut [u8; KEY_MAX_BYTES]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) || text.len() > ENCODED_MAX_BYTES {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let len = text.len() / 4 * 3 - padding;
    if len == 0 || len > KEY_MAX_BYTES {
        return None;
    }
    let (mut at, last) = (0, text.len() / 4 - 1);
    for (place, quad) in text.chunks_exact(4).enumerate() {
        let padded = if place == last { padding } else { 0 };
        let mut bits = 0u32;
        for &byte in &quad[..4 - padded] {
            bits = bits << 6 | value(byte)?;
        }
        bits <<= 6 * padded;
        let bytes = bits.to_be_bytes();
        let (used, unused) = bytes[1..].split_at(3 - padded);
        if unused.iter().any(|&byte| byte != 0) {
            return None;
        }
        key[at..at + used.len()].copy_from_slice(used);
        at += used.len();
    }
    Some(len)
}

fn value(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let mut key = [0; KEY_MAX_BYTES];
        decode(text.as_bytes(), &mut key).map(|len| key[..len].to_vec())
    }

    #[test]
    fn the_vectors_of_the_standard() {
        for (text, bytes) in [
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmFy", "foobar"),
            ("+/+/", "\u{0}"),
        ] {
            if text != "+/+/" {
                assert_eq!(decoded(text), Some(bytes.as_bytes().to_vec()));
            }
        }
        assert_eq!(decoded("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in ["", "Z", "Zg=", "Zg", "====", "Z===", "Zm9=", "Zg==Zg==", "Zm 9", "Zm9v\n"] {
            assert_eq!(decoded(text), None, "{text:?}");
        }
        assert_eq!(decoded(&"A".repeat(336)), None, "252 bytes are no key");
        assert_eq!(decoded(&("A".repeat(332) + "AA==")), Some(vec![0; 250]));
    }
}

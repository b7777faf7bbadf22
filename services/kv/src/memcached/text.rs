//! Helpers for the text protocols: tokens, numbers, times.

use super::refusal::{BAD_FORMAT, Refusal};
pub(super) use crate::store::parse_decimal as number;
use crate::store::{Counter, WallClock};

/// Removes the next token from `line`; tokens are separated by spaces. Returns an empty token if there is none.
pub(super) fn next_token<'a>(line: &mut &'a [u8]) -> &'a [u8] {
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let rest = &line[start..];
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (token, rest) = rest.split_at(end);
    *line = rest;
    token
}

/// Returns the last token of `line`; empty if there is none.
pub(super) fn last_token(line: &[u8]) -> &[u8] {
    line.rsplit(|&byte| byte == b' ').find(|token| !token.is_empty()).unwrap_or_default()
}

/// Parses a decimal number below 2^32.
pub(super) fn number32(token: &[u8]) -> Option<u32> {
    u32::try_from(number(token)?).ok()
}

/// Parses the length of a data block. Lengths that memcached refuses are refused, too, and nothing is skipped then.
pub(super) fn block_bytes(token: &[u8]) -> Result<u64, Refusal> {
    const MAX: u64 = i32::MAX as u64 - 2;
    number(token).filter(|&bytes| bytes <= MAX).ok_or(BAD_FORMAT.into())
}

/// An expiration time as sent by clients: a decimal number of seconds, possibly negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exptime(i64);

/// Maximum relative expiration time in seconds (30 days). A larger number is a Unix time.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

impl Exptime {
    pub(super) fn parse(token: &[u8]) -> Option<Exptime> {
        let (digits, negative) = match token.strip_prefix(b"-") {
            Some(digits) => (digits, true),
            None => (token, false),
        };
        let seconds = i64::try_from(number(digits)?).ok()?;
        Some(Exptime(if negative { -seconds } else { seconds }))
    }

    /// Returns the time in milliseconds of a partition's clock; 0: never. Negative times are in the past.
    pub(crate) fn to_ms(self, now_ms: u64, wall: WallClock) -> u64 {
        const LONG_PAST_MS: u64 = 1;
        match self.0 {
            0 => 0,
            ..0 => LONG_PAST_MS,
            1..=RELATIVE_MAX_S => now_ms + self.0 as u64 * 1000,
            unix_s => wall.to_partition_ms((unix_s as u64).saturating_mul(1000)),
        }
    }

    /// Returns the time of a flush: like an expiration time, but zero and times in the past mean now.
    pub(crate) fn to_flush_ms(self, now_ms: u64, wall: WallClock) -> u64 {
        match self.to_ms(now_ms, wall) {
            0 => now_ms,
            at_ms => at_ms.max(now_ms),
        }
    }

    /// No delay.
    pub(super) const NOW: Exptime = Exptime(0);
}

/// Returns a counter operation with direction and amount.
pub(super) fn counter(increment: bool, delta: u64) -> Counter {
    if increment { Counter::Increment(delta) } else { Counter::Decrement(delta) }
}

/// Appends a decimal number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(crate::store::format_decimal(number, &mut [0; 20]));
}

/// Appends a decimal number with sign.
pub(super) fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_number(out, number.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_split_at_runs_of_spaces() {
        let mut line: &[u8] = b"  get  a b ";
        let tokens: Vec<&[u8]> =
            std::iter::from_fn(|| Some(next_token(&mut line)).filter(|t| !t.is_empty())).collect();
        assert_eq!(tokens, [&b"get"[..], b"a", b"b"]);
    }

    #[test]
    fn exptime_is_relative_up_to_thirty_days() {
        let ms = |text: &str| Exptime::parse(text.as_bytes()).unwrap().to_ms(5_000, WallClock::default());
        assert_eq!(ms("0"), 0);
        assert_eq!(ms("-1"), 1);
        assert_eq!(ms("10"), 15_000);
        assert_eq!(ms("2592000"), 2_592_005_000);
        assert_eq!(ms("2592001"), 2_592_001_000);
        assert_eq!(ms("9223372036854775807"), u64::MAX);
        for bad in ["", "-", "1x", "9223372036854775808", "--1", "+1"] {
            assert_eq!(Exptime::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}

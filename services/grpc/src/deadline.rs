//! Deadlines of calls (`grpc-timeout`), enforced at both ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, Sleep};

/// The deadline of a call, if it has one. Its timer is created at the first poll.
#[derive(Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Reads `grpc-timeout`, counted from now. Invalid values are ignored, as by tonic.
    pub fn of(metadata: &HeaderMap) -> Self {
        let timeout = metadata.get("grpc-timeout").and_then(|value| parse(value.as_bytes()));
        Self { at: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), timer: None }
    }

    /// Ready when the deadline has passed.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at))).as_mut().poll(context)
    }
}

/// Parses at most eight digits and a unit.
fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_specification_writes_them() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("40m", Some(Duration::from_millis(40))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("7n", Some(Duration::from_nanos(7))),
            ("999999999n", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("1s", None),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }
}

//! Waits for a service that was started just before, so that `serve &` and its first client can be entered one after
//! the other.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a missing service is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects, with retries for one second while no service listens.
///
/// # Errors
/// Returns the error of the last attempt.
pub fn connect<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_absent: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if is_absent(&error) && Instant::now() < until => thread::sleep(PAUSE),
            ended => return ended,
        }
    }
}

/// Returns whether an error means that no service listens: a port without a listener, a path without a socket.
pub fn is_absence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_absence_and_reports_other_failures_at_once() {
        let mut tries = 0;
        let mut attempt = |at_last| {
            tries += 1;
            if tries < 3 { Err(ErrorKind::ConnectionRefused) } else { at_last }
        };
        assert_eq!(connect(|| attempt(Ok(7)), |kind| is_absence(*kind)), Ok(7));
        let denied = connect(|| attempt(Err(ErrorKind::PermissionDenied)), |kind| is_absence(*kind));
        assert_eq!((denied, tries), (Err::<u8, _>(ErrorKind::PermissionDenied), 4));
        assert_eq!(
            connect(|| Err::<(), _>(ErrorKind::NotFound), |kind| is_absence(*kind)),
            Err(ErrorKind::NotFound)
        );
    }
}

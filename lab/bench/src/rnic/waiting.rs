//! Waiting for the other end: liveness checks and timeouts.

use super::RnicError;
use crate::peer::{Control, PeerError};
use farcall_drive::sleep_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Consecutive empty polls between two checks of the control socket, which cost a system call.
const LOOKS_PER_CHECK: u32 = 1 << 16;
/// Maximum duration of one sleep before the clock is read.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Timeout of an initiator that observes no progress.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Time without progress after which a message over an unreliable transport counts as lost.
pub(super) const LOSS_AFTER: Duration = Duration::from_millis(500);

/// Reason why an end stops waiting.
#[derive(Debug)]
pub(super) enum Halt {
    /// The other end has sent a message on the control socket, or has exited.
    Called,
    /// The measurement failed.
    Failed(RnicError),
}

impl<E: Into<RnicError>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Halt {
    /// Converts to the error of an initiator, for which [`Halt::Called`] means that its peer has exited.
    pub(super) fn of_initiator(self) -> RnicError {
        match self {
            Self::Called => PeerError::Ended.into(),
            Self::Failed(error) => error,
        }
    }
}

/// Monitors the control socket while an end waits.
pub(super) struct Watch<'a> {
    control: &'a Control,
    looks: u32,
    silent_since: Option<Instant>,
    /// Time at which a loss was last reported in the current silence.
    lost_at: Option<Instant>,
    silence_max: Option<Duration>,
}

impl<'a> Watch<'a> {
    /// Creates the monitor of an initiator, which returns an error after [`SILENCE_MAX`] without progress.
    pub(super) fn initiator(control: &'a Control) -> Self {
        Self { silence_max: Some(SILENCE_MAX), ..Self::target(control) }
    }

    /// Creates the monitor of a target, which waits without a timeout.
    pub(super) fn target(control: &'a Control) -> Self {
        Self { control, looks: 0, silent_since: None, lost_at: None, silence_max: None }
    }

    /// Records progress.
    #[inline]
    pub(super) fn seen(&mut self) {
        self.looks = 0;
        if self.silent_since.is_some() {
            (self.silent_since, self.lost_at) = (None, None);
        }
    }

    /// Records an empty poll; checks the control socket every [`LOOKS_PER_CHECK`] polls.
    #[inline]
    pub(super) fn nothing(&mut self) -> Result<(), Halt> {
        self.looks += 1;
        if self.looks < LOOKS_PER_CHECK {
            std::hint::spin_loop();
            return Ok(());
        }
        self.looks = 0;
        self.check()
    }

    /// Sleeps until `fd` or the control socket is readable, for at most [`SLEEP_MAX`].
    pub(super) fn sleep(&mut self, fd: RawFd) -> Result<(), Halt> {
        sleep_on(&[self.control.as_raw_fd(), fd], Some(SLEEP_MAX))
            .map_err(|source| PeerError::System { call: "poll", source })?;
        self.check()
    }

    /// Returns whether there was no progress for [`LOSS_AFTER`], so that a message sent before must be lost. Returns
    /// true once per such period.
    pub(super) fn is_lost(&mut self) -> bool {
        let since = self.lost_at.or(self.silent_since);
        let is_lost = since.is_some_and(|since| since.elapsed() >= LOSS_AFTER);
        if is_lost {
            self.lost_at = Some(Instant::now());
        }
        is_lost
    }

    #[cold]
    fn check(&mut self) -> Result<(), Halt> {
        let mut control = [PollFd::new(self.control, PollFlags::IN)];
        match poll(&mut control, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Err(Halt::Called),
            Err(errno) => return Err(PeerError::System { call: "poll", source: errno.into() }.into()),
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        match self.silence_max {
            Some(max) if since.elapsed() > max => Err(RnicError::Silence(max).into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_until_checked(watch: &mut Watch<'_>) -> Result<(), Halt> {
        (0..LOOKS_PER_CHECK).try_for_each(|_| watch.nothing())
    }

    #[test]
    fn detects_a_lost_message_repeatedly_and_times_out_on_silence() {
        let (mine, _theirs) = Control::pair().unwrap();
        let mut watch = Watch::initiator(&mine);
        look_until_checked(&mut watch).unwrap();
        assert!(!watch.is_lost());
        watch.silent_since = Instant::now().checked_sub(LOSS_AFTER);
        assert!(watch.is_lost() && !watch.is_lost());
        watch.silent_since = Instant::now().checked_sub(SILENCE_MAX * 2);
        assert!(matches!(look_until_checked(&mut watch), Err(Halt::Failed(RnicError::Silence(_)))));
        watch.seen();
        assert!(look_until_checked(&mut watch).is_ok() && !watch.is_lost());
    }

    #[test]
    fn the_other_ends_word_or_death_ends_waiting() {
        let (mine, theirs) = Control::pair().unwrap();
        let mut watch = Watch::target(&mine);
        look_until_checked(&mut watch).unwrap();
        drop(theirs);
        assert!(matches!(look_until_checked(&mut watch), Err(Halt::Called)));
        assert!(matches!(Halt::Called.of_initiator(), RnicError::Peer(PeerError::Ended)));
    }
}

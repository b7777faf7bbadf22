//! A pair of eventfds, both ends blocking: what it costs to wake a sleeper and be woken.

use super::BaselinePlan;
use super::peer::{PeerError, PeerTask};
use crate::measure::{RoundTrips, ping_pong};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};

/// A peer that does not answer for so long is dead.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

pub(super) fn round_trips(plan: &BaselinePlan) -> Result<RoundTrips, PeerError> {
    let fresh = || eventfd(0, EventfdFlags::CLOEXEC).map_err(PeerError::system("eventfd"));
    let (there, back) = (fresh()?, fresh()?);
    let mut peer =
        plan.launcher.start(PeerTask::Eventfd, plan.server_core, &[there.as_fd(), back.as_fd()])?;
    let mut checked = false;
    ping_pong(plan.warm_up, plan.duration, |_| {
        ring(&there)?;
        if !checked {
            // The first answer shows that the peer works; after that a plain read is what is measured. A peer that
            // dies later leaves the read hanging, so it dies only by our hand.
            let mut fds = [PollFd::new(&back, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&PATIENCE)).map_err(PeerError::system("poll"))?;
            if ready == 0 || !peer.is_alive() {
                return Err(PeerError::Ended);
            }
            checked = true;
        }
        await_ring(&back)
    })
}

/// The peer: answers ring after ring until it is killed.
pub(super) fn answer(
    there: &OwnedFd,
    back: &OwnedFd,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    ready()?;
    loop {
        await_ring(there)?;
        ring(back)?;
    }
}

fn ring(event: &OwnedFd) -> Result<(), PeerError> {
    rustix::io::write(event, &1u64.to_ne_bytes()).map_err(PeerError::system("write"))?;
    Ok(())
}

fn await_ring(event: &OwnedFd) -> Result<(), PeerError> {
    let mut count = [0; 8];
    rustix::io::retry_on_intr(|| rustix::io::read(event, &mut count)).map_err(PeerError::system("read"))?;
    Ok(())
}

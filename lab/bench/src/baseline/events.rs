//! A pair of eventfds with both ends blocking: cost of waking a sleeping thread and of being woken.

use super::task::Answer;
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};

pub(super) fn round_trips(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let fresh = || eventfd(0, EventfdFlags::CLOEXEC).map_err(PeerError::system("eventfd"));
    let (there, back) = (fresh()?, fresh()?);
    // The peer must exit only when it is killed here: if it exited by itself, the read below would block forever.
    let _peer = plan.launcher.start(&Answer::Eventfd, plan.server_core, &[there.as_fd(), back.as_fd()])?;
    ping_pong(plan.warm_up, plan.duration, |_| {
        ring(&there)?;
        await_ring(&back)
    })
}

/// Runs the peer: replies to notifications until it is killed.
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

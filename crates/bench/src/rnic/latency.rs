//! One message there and one back.

use super::RnicError;
use super::endpoint::{FILL, RnicEnd};
use crate::baseline::{BaselinePlan, Peer, PeerError};
use crate::measure::{RoundTrips, ping_pong};
use farcall_verbs::SendWr;

/// After so many fruitless looks the client asks whether its peer is still alive.
const LOOKS_PER_CHECK: u32 = 1 << 20;
/// Receives kept posted.
const RECEIVES: usize = 64;

/// The mark of message `number`; neighbours differ, and so do the first and the fill.
fn mark_of(number: u64) -> u8 {
    (number % 128) as u8
}

pub(super) fn write(
    end: &mut RnicEnd,
    plan: &BaselinePlan,
    peer: &mut Peer,
) -> Result<RoundTrips, RnicError> {
    ping_pong(plan.warm_up, plan.duration, |number| {
        write_marked(end, mark_of(number))?;
        let mut looks = 0u32;
        while end.last_incoming() != mark_of(number) {
            looks += 1;
            if looks == LOOKS_PER_CHECK {
                looks = 0;
                // Polling makes a failure of the connection known, too.
                end.poll()?;
                if !peer.is_alive() {
                    return Err(PeerError::Ended.into());
                }
            }
            std::hint::spin_loop();
        }
        Ok(())
    })
}

pub(super) fn answer_writes(end: &mut RnicEnd) -> Result<(), RnicError> {
    for number in 1u64.. {
        while end.last_incoming() != mark_of(number) {
            std::hint::spin_loop();
        }
        write_marked(end, mark_of(number))?;
    }
    Ok(())
}

#[inline]
fn write_marked(end: &mut RnicEnd, mark: u8) -> Result<(), RnicError> {
    end.mark_outgoing(mark);
    end.post(|sges, remote| SendWr::write(0, sges, remote.addr, remote.rkey))
}

pub(super) fn send(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    end.post_receives(RECEIVES)?;
    ping_pong(plan.warm_up, plan.duration, |number| {
        end.mark_outgoing(mark_of(number));
        send_once(end)?;
        receive_once(end)?;
        if end.last_incoming() == mark_of(number) {
            Ok(())
        } else {
            Err(RnicError::Bytes("a SEND came back with another last byte"))
        }
    })
}

pub(super) fn answer_sends(end: &mut RnicEnd) -> Result<(), RnicError> {
    end.post_receives(RECEIVES)?;
    loop {
        receive_once(end)?;
        end.mark_outgoing(end.last_incoming());
        send_once(end)?;
    }
}

#[inline]
fn send_once(end: &mut RnicEnd) -> Result<(), RnicError> {
    end.post(|sges, _| SendWr::send(0, sges))
}

#[inline]
fn receive_once(end: &mut RnicEnd) -> Result<(), RnicError> {
    end.take_receive()?;
    end.post_receives(1)
}

pub(super) fn read(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    ping_pong(plan.warm_up, plan.duration, |_| {
        end.mark_outgoing(!FILL);
        end.read_once()?;
        if end.last_outgoing() == FILL {
            Ok(())
        } else {
            Err(RnicError::Bytes("a READ brought another last byte"))
        }
    })
}

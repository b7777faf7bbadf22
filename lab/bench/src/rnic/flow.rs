//! Flow control for transports that have none. The target returns one credit for each batch of received messages, and
//! the initiator has no more messages outstanding than the target has receives. Without flow control, a faster sender
//! would measure its rate of lost messages.

use super::RnicError;
use super::endpoint::BenchEndpoint;
use super::operation::Operation;
use super::task::RnicTask;
use farcall_link::{Chain, LocalSlice};

/// Maximum number of outstanding credits of a queue pair: the receives that an initiator posts for them.
pub(super) const CREDITS_MAX: u32 = 32;

/// Parameters that both ends derive from the task in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    /// Maximum number of outstanding messages of a queue pair.
    pub(super) capacity: u32,
    /// Number of messages that one credit acknowledges.
    pub(super) credit_every: u32,
}

impl Flow {
    /// Returns the parameters for a target with receives for `capacity` messages of each queue pair; `None` if the
    /// transport needs no flow control.
    pub(super) fn of(task: &RnicTask, capacity: u32) -> Result<Option<Self>, RnicError> {
        if !task.is_unreliable() || !task.operation.consumes_receive() {
            return Ok(None);
        }
        let chain = task.tuning.chain;
        // Chosen such that the window has space for another chain even while the target has not yet returned a credit
        // for the last few messages.
        let room = (capacity + 1).saturating_sub(chain);
        let credit_every = (capacity / 4).max(1).min(room);
        if credit_every == 0 || capacity / credit_every > CREDITS_MAX {
            return Err(RnicError::Capacity { chain, capacity });
        }
        Ok(Some(Self { capacity, credit_every }))
    }
}

/// Credits that a target returns.
pub(super) struct Credits {
    flow: Flow,
    /// Messages of each queue pair since its last credit.
    received: Vec<u32>,
    /// Request of each queue pair that sends one credit, a message of one byte.
    chains: Vec<Chain>,
}

impl Credits {
    pub(super) fn new(end: &BenchEndpoint, task: &RnicTask, flow: Flow) -> Result<Self, RnicError> {
        let qps = task.tuning.qps as usize;
        let byte = LocalSlice { len_bytes: 1, ..end.memory.outgoing(0) };
        let credit = |qp| end.chain(Operation::Send, (0, qp), byte, std::iter::once(true));
        Ok(Self { flow, received: vec![0; qps], chains: (0..qps).map(credit).collect::<Result<_, _>>()? })
    }

    /// Records `count` messages of queue pair `qp`, whose receives have been posted again, and sends the credits that
    /// are due.
    #[inline]
    pub(super) fn count(&mut self, end: &mut BenchEndpoint, qp: usize, count: u32) -> Result<(), RnicError> {
        self.received[qp] += count;
        while self.received[qp] >= self.flow.credit_every {
            self.received[qp] -= self.flow.credit_every;
            end.groups[0].qps[qp].post_chain(&mut self.chains[qp], qp as u32)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::{RnicTest, Tuning};
    use super::*;
    use farcall_link::Transport;

    #[test]
    fn a_chain_always_has_room_in_the_end_and_credits_never_overrun() {
        let task = |transport, chain| RnicTask {
            operation: Operation::Send,
            transport,
            test: RnicTest::Throughput,
            len_bytes: 64,
            tuning: Tuning { chain, ..Tuning::RATE },
        };
        for capacity in 1..200 {
            for chain in 1..200 {
                match Flow::of(&task(Transport::Ud, chain), capacity) {
                    Ok(flow) => {
                        let flow = flow.unwrap();
                        assert!(flow.credit_every - 1 + chain <= capacity);
                        assert!(capacity / flow.credit_every <= CREDITS_MAX);
                    }
                    Err(_) => {
                        assert!(chain > capacity || capacity + 1 - chain < capacity.div_ceil(CREDITS_MAX))
                    }
                }
            }
        }
        assert!(Flow::of(&task(Transport::Rc, 32), 1).unwrap().is_none());
    }
}

//! Client of an echo measurement: keeps a window of echoes outstanding on each connection and checks each response.

use super::EchoTask;
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::PairPlan;
use crate::rnic::RnicError;
use crate::rnic::endpoint::BenchEndpoint;
use crate::rnic::receives::place_of_receive;
use crate::rnic::waiting::{Halt, Watch};
use farcall_verbs::Wc;

/// Echoes between two readings of the clock.
const BURST: u32 = 32;

/// Received echoes.
pub(super) struct EchoCounts {
    /// Recorded bursts.
    pub(super) bursts: RoundTrips,
    /// Number of echoes per burst.
    pub(super) echoes_each: u32,
    /// Total number of echoes.
    pub(super) total: u64,
}

/// State of one connection.
#[derive(Debug, Clone, Copy, Default)]
struct Conversation {
    sent: u64,
    answered: u64,
}

struct Client<'a> {
    task: &'a EchoTask,
    conversations: Vec<Conversation>,
}

pub(super) fn measure(
    end: &mut BenchEndpoint,
    task: &EchoTask,
    plan: &PairPlan,
    watch: &mut Watch<'_>,
) -> Result<EchoCounts, RnicError> {
    let connections = task.connections as usize;
    let mut client = Client { task, conversations: vec![Conversation::default(); connections] };
    let mut connection = 0;
    let bursts = ping_pong(plan.warm_up, plan.duration, |_| {
        for _ in 0..BURST {
            client.send(end, connection, watch)?;
            connection = if connection + 1 == connections { 0 } else { connection + 1 };
        }
        Ok::<(), Halt>(())
    });
    let bursts = bursts.and_then(|bursts| client.drain(end, watch).map(|()| bursts));
    let bursts = bursts.map_err(Halt::of_initiator)?;
    let total = client.conversations.iter().map(|conversation| conversation.sent).sum();
    Ok(EchoCounts { bursts, echoes_each: BURST, total })
}

impl Client<'_> {
    /// Sends the next echo of a connection as soon as its window has space.
    fn send(
        &mut self,
        end: &mut BenchEndpoint,
        connection: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let window = self.task.window;
        // The slot is free when its previous echo has returned and the previous request is known to be complete.
        while self.under_way(connection) >= u64::from(window)
            || end.groups[0].qps[connection].outstanding() >= window
        {
            self.progress(end, connection, watch)?;
        }
        let number = self.conversations[connection].sent;
        let mine = connection * window as usize + (number % u64::from(window)) as usize;
        end.memory.mark_outgoing(mine, self.task.mark_of(number));
        let to = self.task.place_of(connection, number);
        let conversation = &mut self.conversations[connection];
        conversation.sent += 1;
        let is_signalled = self.task.signals(conversation.sent);
        let place = end.memory.outgoing(mine);
        end.post(self.task.request.operation, (0, connection), place, to, is_signalled)?;
        Ok(())
    }

    fn under_way(&self, connection: usize) -> u64 {
        let conversation = &self.conversations[connection];
        conversation.sent - conversation.answered
    }

    /// Polls for responses, first of all those on `connection`.
    fn progress(
        &mut self,
        end: &mut BenchEndpoint,
        connection: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        if !self.task.response.operation.consumes_receive() {
            let answered = self.conversations[connection].answered;
            let is_here = self.under_way(connection) > 0
                && end.memory.last_incoming(self.task.place_of(connection, answered))
                    == self.task.mark_of(answered);
            if is_here {
                self.conversations[connection].answered += 1;
                watch.seen();
                return Ok(());
            }
            if end.groups[0].qps[connection].outstanding() < self.task.signal_every {
                // No completion is expected.
                watch.nothing()?;
                return Ok(());
            }
        }
        let count = end.look(watch)?;
        for index in 0..count {
            let wc = end.wcs[index];
            self.complete(end, &wc)?;
        }
        Ok(())
    }

    fn complete(&mut self, end: &mut BenchEndpoint, wc: &Wc) -> Result<(), RnicError> {
        if !wc.opcode.is_receive() {
            end.completed(wc);
            return Ok(());
        }
        let qp = end.receives.qp_of(wc);
        let connection = qp - self.task.response_lane() * self.task.connections as usize;
        let conversation = &mut self.conversations[connection];
        let number = conversation.answered;
        let place = self.task.came_to(self.task.response, (connection, number), place_of_receive(wc));
        if number == conversation.sent || end.memory.last_incoming(place) != self.task.mark_of(number) {
            return Err(RnicError::Bytes("an echo came back that was not awaited; one may have been lost"));
        }
        conversation.answered += 1;
        end.received(qp)
    }

    /// Waits for all outstanding responses.
    fn drain(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<(), Halt> {
        for connection in 0..self.conversations.len() {
            while self.under_way(connection) > 0 {
                self.progress(end, connection, watch)?;
            }
        }
        Ok(())
    }
}

//! Server of an echo measurement: returns each message from the slot in which it arrived.

use super::EchoTask;
use crate::peer::{PeerError, PeerPlace, PeerTask};
use crate::rnic::endpoint::BenchEndpoint;
use crate::rnic::receives::place_of_receive;
use crate::rnic::target::serve;
use crate::rnic::waiting::{Halt, Watch};
use farcall::select::Selection;
use farcall_verbs::Wc;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::convert::Infallible;

/// Server task of an echo measurement. It echoes messages until the client sends a message on the control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServer {
    pub(super) task: EchoTask,
    pub(super) selection: Selection,
}

impl PeerTask for EchoServer {
    const KIND: &'static str = "echo";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        let Self { task, selection } = &self;
        task.check().map_err(|refusal| PeerError::Part(refusal.to_string()))?;
        let connections = task.connections as usize;
        let mut server = Server {
            task,
            served: vec![0; connections],
            arrived: vec![0; connections],
            came: VecDeque::with_capacity(connections * task.places_each()),
        };
        serve(selection, &task.end_plan(task.request), &place, |end, watch| {
            if task.request.operation.consumes_receive() {
                server.answer_messages(end, watch)
            } else {
                server.answer_writes(end, watch)
            }
        })
    }
}

struct Server<'a> {
    task: &'a EchoTask,
    /// Number of echoes of each connection that were returned, and that arrived.
    served: Vec<u64>,
    arrived: Vec<u64>,
    /// Messages that arrived while the server polled for completions: connection and slot.
    came: VecDeque<(usize, usize)>,
}

impl Server<'_> {
    /// Polls the next slot of each connection in turn.
    fn answer_writes(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<Infallible, Halt> {
        loop {
            let mut is_idle = true;
            for connection in 0..self.served.len() {
                let number = self.served[connection];
                let place = self.task.place_of(connection, number);
                if end.memory.last_incoming(place) == self.task.mark_of(number) {
                    is_idle = false;
                    self.answer(end, connection, place, watch)?;
                }
            }
            if is_idle {
                watch.nothing()?;
            } else {
                watch.seen();
            }
        }
    }

    fn answer_messages(
        &mut self,
        end: &mut BenchEndpoint,
        watch: &mut Watch<'_>,
    ) -> Result<Infallible, Halt> {
        loop {
            self.look(end, watch)?;
            while let Some((connection, place)) = self.came.pop_front() {
                self.answer(end, connection, place, watch)?;
                end.received(connection)?;
            }
        }
    }

    /// Returns the message in `place` to the client.
    fn answer(
        &mut self,
        end: &mut BenchEndpoint,
        connection: usize,
        place: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let group = self.task.response_lane();
        while end.groups[group].qps[connection].outstanding() >= self.task.window {
            self.look(end, watch)?;
        }
        let to = self.task.place_of(connection, self.served[connection]);
        self.served[connection] += 1;
        let is_signalled = self.task.signals(self.served[connection]);
        // The client reuses the slot only after this response has reached it, so the message can be sent from it.
        let place = end.memory.incoming(place);
        end.post(self.task.response.operation, (group, connection), place, to, is_signalled)?;
        Ok(())
    }

    fn look(&mut self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let count = end.look(watch)?;
        for index in 0..count {
            let wc = end.wcs[index];
            self.complete(end, &wc);
        }
        Ok(())
    }

    fn complete(&mut self, end: &mut BenchEndpoint, wc: &Wc) {
        if wc.opcode.is_receive() {
            let connection = end.receives.qp_of(wc);
            let echo = (connection, self.arrived[connection]);
            self.arrived[connection] += 1;
            self.came
                .push_back((connection, self.task.came_to(self.task.request, echo, place_of_receive(wc))));
        } else {
            end.completed(wc);
        }
    }
}

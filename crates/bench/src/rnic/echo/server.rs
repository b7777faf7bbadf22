//! The server's part: sends each message back from where it came to lie.

use super::{EchoTask, Outgoing};
use crate::baseline::PeerError;
use crate::rnic::RnicError;
use crate::rnic::end::End;
use crate::rnic::receives::place_of_receive;
use crate::rnic::target::finish;
use crate::rnic::waiting::{Halt, Watch};
use farcall_verbs::{Provider, SendFlags, Wc};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::unix::net::UnixStream;

/// Echoes until it is called.
pub(crate) fn serve(
    provider: &dyn Provider,
    task: &EchoTask,
    control: &UnixStream,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), RnicError> {
    ready()?;
    let mut end = End::connect(provider, control, &task.end_plan(task.request))?;
    let mut watch = Watch::target(control);
    let connections = task.connections as usize;
    let mut server = Server {
        task,
        served: vec![0; connections],
        arrived: vec![0; connections],
        outgoing: vec![Outgoing::default(); connections],
        came: VecDeque::with_capacity(connections * task.places_each()),
    };
    let Err(halt) = if task.request.operation.consumes_receive() {
        server.answer_messages(&mut end, &mut watch)
    } else {
        server.answer_writes(&mut end, &mut watch)
    };
    finish(&end, control, halt)
}

struct Server<'a> {
    task: &'a EchoTask,
    /// Echoes of each connection that were answered, and that came.
    served: Vec<u64>,
    arrived: Vec<u64>,
    outgoing: Vec<Outgoing>,
    /// Messages that came while completions were looked for: connection and place.
    came: VecDeque<(usize, usize)>,
}

impl Server<'_> {
    /// Looks at the next place of each connection in turn.
    fn answer_writes(&mut self, end: &mut End, watch: &mut Watch<'_>) -> Result<Infallible, Halt> {
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

    fn answer_messages(&mut self, end: &mut End, watch: &mut Watch<'_>) -> Result<Infallible, Halt> {
        loop {
            self.look(end, watch)?;
            while let Some((connection, place)) = self.came.pop_front() {
                self.answer(end, connection, place, watch)?;
                end.received(connection)?;
            }
        }
    }

    /// Sends the message in `place` back.
    fn answer(
        &mut self,
        end: &mut End,
        connection: usize,
        place: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        while self.outgoing[connection].outstanding >= self.task.window {
            self.look(end, watch)?;
        }
        let lane = self.task.response_lane();
        let sges = [end.memory.incoming_sge(place)];
        let to = self.task.place_of(connection, self.served[connection]);
        let mut wr = end.request(self.task.response.operation, (lane, connection), &sges, to);
        self.served[connection] += 1;
        if self.outgoing[connection].count(self.task.signal_every) {
            wr.wr_id = connection as u64;
            wr = wr.with_flags(SendFlags::SIGNALED);
        }
        // SAFETY: the memory outlives the queue pair; this end does not write it, and the client sends into the place again
        // only after this answer has reached it.
        unsafe { end.lanes[lane].qps[connection].post_send(std::slice::from_ref(&wr))? };
        Ok(())
    }

    fn look(&mut self, end: &mut End, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let count = end.look(watch)?;
        for index in 0..count {
            self.complete(end, &end.wcs[index]);
        }
        Ok(())
    }

    fn complete(&mut self, end: &End, wc: &Wc) {
        if wc.opcode.is_receive() {
            let connection = end.receives.qp_of(wc);
            let echo = (connection, self.arrived[connection]);
            self.arrived[connection] += 1;
            self.came
                .push_back((connection, self.task.came_to(self.task.request, echo, place_of_receive(wc))));
        } else {
            self.outgoing[wc.wr_id as usize].outstanding -= self.task.signal_every;
        }
    }
}

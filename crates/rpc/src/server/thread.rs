//! One server thread: a responder, and the lines of its clients.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use farcall_drive::{Driver, LineEvent, LineId, LineSender, pin_to_core};
use farcall_link::bootstrap::Notice;
use farcall_link::{Nic, Waiting};
use farcall_verbs::{Endpoint, Error, MonotonicClock, Nanos, Next, Result, WaitSet};

use super::Shared;
use crate::config::ResponderConfig;
use crate::responder::{ConnectionId, Handler, Responder, ResponderEvent};

/// What a thread starts with.
pub(super) struct Start {
    pub nic: Nic,
    pub config: ResponderConfig,
    pub incarnation: u64,
    pub waiting: Waiting,
    pub core: Option<usize>,
    pub shared: Arc<Shared>,
    pub lines: LineSender,
}

/// Runs a thread to its end; tells first whether it started.
pub(super) fn run<H: Handler>(
    start: Start,
    service: impl FnOnce() -> H,
    started: &mpsc::Sender<Result<(), Error>>,
) {
    let Start { nic, config, incarnation, waiting, core, shared, lines } = start;
    if let Some(core) = core
        && let Err(error) = pin_to_core(core)
    {
        let _ = started.send(Err(Error::os("pin thread", format!("core {core}"), error)));
        return;
    }
    let clock = MonotonicClock::new();
    let thread = usize::from(config.thread);
    let responder = match Responder::new(nic, config, incarnation, service(), clock) {
        Ok(responder) => responder,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let stop = shared.stop.clone();
    let mut endpoint =
        ServerThread { responder, thread, shared, lines, connections: HashMap::new(), draining: false };
    let _ = started.send(Ok(()));
    let mut driver = Driver::new(clock, waiting, stop);
    // An error here means that the system cannot sleep on a descriptor: the thread cannot go on.
    if let Err(error) = driver.run_until(&mut endpoint, ServerThread::is_drained) {
        eprintln!("farcall server thread {thread}: {error}");
    }
    endpoint.tell_events();
}

struct ServerThread<H> {
    responder: Responder<H, MonotonicClock>,
    thread: usize,
    shared: Arc<Shared>,
    lines: LineSender,
    connections: HashMap<LineId, ConnectionId>,
    draining: bool,
}

impl<H: Handler> ServerThread<H> {
    #[inline]
    fn is_drained(&mut self) -> bool {
        self.responder.is_drained() && self.responder.handler_ref().is_drained_beside()
    }

    #[cold]
    fn take_events(&mut self, now: Nanos) {
        while let Some(event) = self.shared.inboxes[self.thread].pop() {
            match event {
                LineEvent::Hello(line, hello) => match self.responder.accept(&hello, now) {
                    Ok((id, welcome)) => {
                        self.connections.insert(line, id);
                        self.lines.welcome(line, welcome);
                    }
                    Err(refusal) => self.lines.refuse(line, refusal),
                },
                LineEvent::Notice(line, Notice::Goodbye) => self.hang_up(line, false, now),
                LineEvent::Notice(..) => {}
                LineEvent::HungUp(line) => self.hang_up(line, true, now),
            }
        }
    }

    fn hang_up(&mut self, line: LineId, may_come_back: bool, now: Nanos) {
        if let Some(id) = self.connections.remove(&line) {
            self.responder.hang_up(id, may_come_back, now);
        }
    }

    fn tell_events(&mut self) {
        while let Some(ResponderEvent::Closed { connection, tell, .. }) = self.responder.poll_event() {
            let Some(line) =
                self.connections.iter().find(|(_, id)| **id == connection).map(|(line, _)| *line)
            else {
                continue;
            };
            self.connections.remove(&line);
            match tell {
                Some(refusal) => self.lines.refuse(line, refusal),
                None => self.lines.close(line),
            }
        }
    }

    #[cold]
    fn begin_drain(&mut self, now: Nanos) {
        self.draining = true;
        self.responder.drain();
        self.responder.handler().drain_beside(now);
        for line in self.connections.keys() {
            self.lines.notice(*line, Notice::GoingAway);
        }
    }
}

impl<H: Handler> Endpoint for ServerThread<H> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Next {
        if self.shared.inboxes[self.thread].has_any() {
            self.take_events(now);
        }
        let next = self.responder.progress(now);
        let next = next.merge(self.responder.handler().beside(now));
        if next != Next::Again {
            // Rare things are looked at when there is a moment.
            self.tell_events();
            if !self.draining && self.shared.drain.load(Ordering::Acquire) {
                self.begin_drain(now);
                return Next::Again;
            }
        }
        next
    }

    fn arm(&mut self) -> Result<()> {
        // Before the last look: a drain that is asked for from now on makes the descriptor readable again.
        self.shared.inboxes[self.thread].clear_wake();
        self.responder.handler().arm_beside();
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.shared.inboxes[self.thread].fd());
        self.responder.wait_set(set);
        self.responder.handler_ref().wait_set_beside(set);
    }
}

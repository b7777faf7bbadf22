//! The end of connections: draining them, retaining their sessions for their clients, and expiring sessions and calls.

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_verbs::{Clock, Error, Nanos};

use super::{ConnectionId, Handler, Open, Parked, Responder, ResponderEvent, ServerEnd};
use crate::error::Broken;

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Ends a connection whose client process has exited, or has sent a close notification. If `may_come_back` is set,
    /// its session is retained for a while.
    pub fn hang_up(&mut self, id: ConnectionId, may_come_back: bool, now: Nanos) {
        if let Some(at) = self.position(id) {
            self.end(at, Broken::HungUp, None, may_come_back.then_some(now));
        }
    }

    /// Ends a connection. If `keep_from` is set, retains its session from that time on.
    pub(super) fn end(&mut self, at: usize, why: Broken, tell: Option<Refusal>, keep_from: Option<Nanos>) {
        let Open { mut end, turns } = self.connections.remove(at);
        self.lookout.remove(at);
        self.owing -= usize::from(end.owes());
        self.receiving -= usize::from(turns.is_told);
        self.by_tag.remove(&end.session.id.tag());
        self.engine.counters.connections_closed.increment();
        end.own.iter_mut().for_each(|own| own.connection.close());
        self.engine.handler.closed(end.id.0);
        end.keep_from = keep_from;
        self.events.push_back(ResponderEvent::Closed { connection: end.id, why, tell });
        self.closing.push(end);
        self.release_closing();
    }

    /// Releases connections that are drained, and their memory when no peer can access it any more.
    pub(super) fn release_closing(&mut self) {
        let mut at = 0;
        while at < self.closing.len() {
            let ServerEnd { own, reply_to, .. } = &self.closing[at];
            let thread_pair = &mut self.engine.thread_pair;
            let is_drained = own.as_ref().is_none_or(|own| own.connection.is_drained());
            if !is_drained || reply_to.as_ref().is_some_and(|to| !thread_pair.is_done(to)) {
                at += 1;
                continue;
            }
            reply_to.iter().for_each(|to| thread_pair.remove(to));
            own.iter().for_each(|own| _ = self.by_qp.remove(&own.connection.qp_num()));
            let end = self.closing.swap_remove(at);
            self.park(end);
        }
    }

    fn park(&mut self, end: ServerEnd) {
        let Some(since) = end.keep_from else { return };
        if self.parked.len() >= self.engine.config.sessions_parked_max {
            self.parked.remove(0);
        }
        let expires = since + self.engine.config.session_linger;
        let session = end.into_session(&self.nic);
        self.parked.extend(session.map(|session| Parked { session, expires }));
    }

    pub(super) fn expire_sessions(&mut self, now: Nanos) {
        if !self.parked.is_empty() {
            self.parked.retain(|parked| parked.expires > now);
        }
    }

    /// Ends the deferred calls whose deadline has passed.
    pub(super) fn expire_deferred(&mut self, now: Nanos) {
        if self.engine.deferring.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let open = self.connections.iter_mut().map(|open| &mut open.end.session);
        let parked = self.parked.iter_mut().map(|parked| &mut parked.session);
        let mut next = None;
        for session in open.chain(parked) {
            let before = session.deferred.len();
            session.deferred.retain(|call| call.deadline.is_none_or(|deadline| now < deadline));
            self.engine.counters.deadlines_exceeded.add((before - session.deferred.len()) as u64);
            next = session.deferred.iter().map(|call| call.deadline).fold(next, Nanos::earlier);
        }
        self.engine.deferring.next_deadline = next;
    }

    #[cold]
    pub(super) fn close_violators(&mut self) {
        let mut at = 0;
        while at < self.connections.len() {
            let Some(why) = self.connections[at].end.violation.take() else {
                at += 1;
                continue;
            };
            self.engine.counters.violations.increment();
            let tell = Some(RefusalKind::Malformed.because(why.clone()));
            // The session is not retained: its messages cannot be trusted any more.
            self.end(at, Broken::Protocol(why), tell, None);
        }
    }

    #[cold]
    pub(super) fn fail_all(&mut self, error: &Error, now: Nanos) {
        while !self.connections.is_empty() {
            self.end(0, Broken::Verbs(error.to_string()), None, Some(now));
        }
    }
}

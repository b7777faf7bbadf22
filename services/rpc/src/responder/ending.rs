//! The end of connections: draining them, retaining their sessions for their clients, and expiring sessions and calls.

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_verbs::{Clock, Error, Nanos, with_sources};

use super::{ConnectionId, DetachedSession, Handler, Open, Responder, ResponderEvent, ServerConnection};
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
    pub(super) fn end(&mut self, at: usize, why: Broken, refusal: Option<Refusal>, keep_from: Option<Nanos>) {
        let Open { mut end, paths } = self.connections.remove(at);
        self.poll_table.remove(at);
        self.due_connections -= usize::from(end.has_work_due());
        self.receiving -= usize::from(paths.is_completion_driven);
        self.by_tag.remove(&end.session.id.tag());
        self.engine.counters.connections_closed.increment();
        end.dedicated_qp.iter_mut().for_each(|dedicated_qp| dedicated_qp.connection.close());
        self.engine.handler.closed(end.id.0);
        end.keep_from = keep_from;
        self.events.push_back(ResponderEvent::Closed { connection: end.id, why, refusal });
        self.closing.push(end);
        self.release_closing();
    }

    /// Releases connections that are drained, and their memory when no peer can access it any more.
    pub(super) fn release_closing(&mut self) {
        let mut at = 0;
        while at < self.closing.len() {
            let ServerConnection { dedicated_qp, reply_to, .. } = &self.closing[at];
            let shared_ud_qp = &mut self.engine.shared_ud_qp;
            let is_drained =
                dedicated_qp.as_ref().is_none_or(|dedicated_qp| dedicated_qp.connection.is_drained());
            if !is_drained || reply_to.as_ref().is_some_and(|to| !shared_ud_qp.is_done(to)) {
                at += 1;
                continue;
            }
            reply_to.iter().for_each(|to| shared_ud_qp.remove(to));
            dedicated_qp
                .iter()
                .for_each(|dedicated_qp| _ = self.by_qp.remove(&dedicated_qp.connection.qp_num()));
            let end = self.closing.swap_remove(at);
            self.detach(end);
        }
    }

    fn detach(&mut self, end: ServerConnection) {
        let Some(since) = end.keep_from else { return };
        if self.detached.len() >= self.engine.config.detached_sessions_max {
            self.detached.remove(0);
        }
        let expires = since + self.engine.config.session_linger;
        let session = end.into_session(&self.nic);
        self.detached.extend(session.map(|session| DetachedSession { session, expires }));
    }

    pub(super) fn expire_sessions(&mut self, now: Nanos) {
        if !self.detached.is_empty() {
            self.detached.retain(|detached| detached.expires > now);
        }
    }

    /// Ends the deferred calls whose deadline has passed.
    pub(super) fn expire_deferred(&mut self, now: Nanos) {
        if self.engine.deferred_calls.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let open = self.connections.iter_mut().map(|open| &mut open.end.session.deferred);
        let detached = self.detached.iter_mut().map(|detached| &mut detached.session.deferred);
        let expired = self.engine.deferred_calls.expire(open.chain(detached), now);
        self.engine.counters.deadlines_exceeded.add(expired as u64);
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
            let refusal = Some(RefusalKind::Malformed.because(why.clone()));
            // The session is not retained: its messages cannot be trusted any more.
            self.end(at, Broken::Protocol(why), refusal, None);
        }
    }

    #[cold]
    pub(super) fn fail_all(&mut self, error: &Error, now: Nanos) {
        while !self.connections.is_empty() {
            self.end(0, Broken::Verbs(with_sources(&error)), None, Some(now));
        }
    }
}

//! Disconnection from other hosts. Messages may be lost, so the DREQ of an endpoint that its program has destroyed is
//! repeated until it is answered, and a process that exits normally waits for that. On behalf of a killed process, the
//! process that owns queue pair 1 sends the DREQ.

use std::time::{Duration, Instant};

use farcall_wire::cm::{CommunicationIds, Connection, State};

use crate::abroad::{ELECTION, Far};
use crate::connection_manager::{ConnectionManager, End, Token};
use crate::noted::{Noted, Place};

/// Interval at which other processes check whether the elected process still exists.
const ELECTION_EVERY: Duration = Duration::from_millis(50);
/// Interval at which the elected process checks whether the others still exist.
const DEATH_EVERY: Duration = Duration::from_millis(250);
/// Queue for events that are discarded.
const NOBODY: Token = 0;

impl ConnectionManager {
    /// Claims the receive side of queue pair 1 if no process has it, and then disconnects for exited processes. Sets a
    /// timer for the next attempt.
    pub fn elect(&mut self) {
        let Some(abroad) = &self.abroad else { return };
        let is_elected = abroad.management.claim();
        if is_elected {
            self.speak_for_the_dead();
        }
        let next = if is_elected { DEATH_EVERY } else { ELECTION_EVERY };
        self.add_timer(Instant::now() + next, ELECTION);
    }

    fn speak_for_the_dead(&mut self) {
        while let Some((dead, left)) = self.abroad.as_ref().and_then(|abroad| abroad.connections.next_dead())
        {
            for noted in left {
                self.speak_for(&noted, None);
            }
            // Only after the records are in this process's section, because this process may be killed as well.
            if let Some(abroad) = &self.abroad {
                abroad.connections.forget(dead);
            }
        }
    }

    /// Notifies the peer of a connection whose process has exited. `place` is the connection's record, if it is in
    /// this process's section.
    pub fn speak_for(&mut self, noted: &Noted, place: Option<Place>) {
        let (connection, dreq) = Connection::for_exited_process(noted.qp_num);
        let mut end = End::new(None, NOBODY);
        end.connection = Some(connection);
        end.ids = CommunicationIds::established(noted.local, noted.remote);
        let mut far = Far::new(noted.peer);
        (far.place, far.is_left) = (place, true);
        end.far = Some(far);
        let token = self.add_end(end);
        self.note(token);
        self.send_far(token, &dreq);
    }

    /// Sends the last message of an endpoint that its program destroys. Returns whether the endpoint remains, without
    /// its program, until its peer has replied.
    pub fn part(&mut self, token: Token) -> bool {
        let Some(End { far: Some(_), connection: Some(connection), .. }) = self.ends.get_mut(&token) else {
            return false;
        };
        let message = connection.disconnect().or_else(|| connection.reject(Vec::new()).ok());
        if let Some(message) = message {
            self.send_far(token, &message);
        }
        let Some(end) = self.ends.get_mut(&token) else { return false };
        if end.connection.as_ref().map(Connection::state) != Some(State::DreqSent) {
            return false;
        }
        if let Some(far) = &mut end.far {
            far.is_left = true;
        }
        (end.id, end.port) = (None, None);
        let queue = std::mem::replace(&mut end.queue, NOBODY);
        self.drop_notices(queue, token);
        // It ends when its DREQ has been answered, or repeated the maximum number of times.
        self.wait_until(token, None);
        true
    }

    /// Ends the connections with other hosts because the process exits.
    pub fn leave(&mut self) {
        let far = self.ends.iter().filter(|(_, end)| end.far.is_some());
        let tokens: Vec<Token> = far.map(|(token, _)| *token).collect();
        for token in tokens {
            self.part(token);
        }
    }

    /// Returns whether a peer has not confirmed the end of its connection.
    pub fn is_leaving(&self) -> bool {
        self.ends.values().any(|end| end.far.as_ref().is_some_and(|far| far.is_left))
    }

    /// Updates the journal: an endpoint is recorded while its peer must be notified of its end.
    pub fn note(&mut self, token: Token) {
        let Some(abroad) = &mut self.abroad else { return };
        let Some(End { far: Some(far), connection, ids, .. }) = self.ends.get_mut(&token) else { return };
        match (connection.as_ref().and_then(Connection::waiting_qp_num), far.place) {
            (Some(qp_num), None) => {
                let noted = Noted { peer: far.peer, local: ids.local(), remote: ids.remote(), qp_num };
                far.place = abroad.connections.add(&noted);
            }
            (None, Some(place)) => {
                abroad.connections.remove(place);
                far.place = None;
            }
            _ => {}
        }
    }
}

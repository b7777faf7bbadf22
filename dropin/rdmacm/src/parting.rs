//! The end of connections with other hosts. What tells of it may be lost: so the DREQ of an end whose program has
//! destroyed it goes again until it is answered, and a process that ends in order waits for that. For a process that
//! was killed, the one that has queue pair 1 says it.

use std::time::{Duration, Instant};

use farcall_wire::cm::{CommunicationIds, Connection, State};

use crate::abroad::{ELECTION, Far};
use crate::connection_manager::{ConnectionManager, End, Token};
use crate::noted::{Noted, Place};

/// How often who is not elected looks whether the elected process lives.
const ELECTION_EVERY: Duration = Duration::from_millis(50);
/// How often the elected process looks whether the others live.
const DEATH_EVERY: Duration = Duration::from_millis(250);
/// The queue of events that nobody waits for.
const NOBODY: Token = 0;

impl ConnectionManager {
    /// Takes over what comes for queue pair 1 if nobody does, and speaks for the dead then; looks again soon.
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
            // Only now, when what it had is noted as ours: we may be killed as well.
            if let Some(abroad) = &self.abroad {
                abroad.connections.forget(dead);
            }
        }
    }

    /// Tells the peer of a connection whose process has died; `place` is where that is noted, if it is ours.
    pub fn speak_for(&mut self, noted: &Noted, place: Option<Place>) {
        let (connection, dreq) = Connection::abandoned(noted.qp_num);
        let mut end = End::new(None, NOBODY);
        end.connection = Some(connection);
        end.ids = CommunicationIds::known(noted.local, noted.remote);
        let mut far = Far::new(noted.peer);
        (far.place, far.is_left) = (place, true);
        end.far = Some(far);
        let token = self.add_end(end);
        self.note(token);
        self.send_far(token, &dreq);
    }

    /// The last word of a far end that its program destroys. Whether the end stays, without its program, until its peer
    /// has answered.
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
        // It is over when its DREQ was answered, or sent often enough.
        self.wait_until(token, None);
        true
    }

    /// The process ends: so do its connections with other hosts.
    pub fn leave(&mut self) {
        let far = self.ends.iter().filter(|(_, end)| end.far.is_some());
        let tokens: Vec<Token> = far.map(|(token, _)| *token).collect();
        for token in tokens {
            self.part(token);
        }
    }

    /// Whether a peer has not confirmed the end of its connection.
    pub fn is_leaving(&self) -> bool {
        self.ends.values().any(|end| end.far.as_ref().is_some_and(|far| far.is_left))
    }

    /// Notes a far end as long as its peer must be told of its end.
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

//! Disconnection from other hosts. Messages may be lost, so the DREQ of an endpoint that its program has destroyed is
//! repeated until it is answered, and a process that exits normally waits for that. On behalf of a killed process, the
//! process that owns queue pair 1 sends the DREQ.

use std::time::{Duration, Instant};

use farcall_wire::cm::{CommunicationIds, Connection, State};

use super::{CmEndpoint, ConnectionManager};
use crate::connection_journal::{JournaledConnection, RecordIndex};
use crate::remote::RemoteEndpoint;
use crate::token::{ELECTION, Token};

/// Interval at which other processes check whether the elected process still exists.
const ELECTION_EVERY: Duration = Duration::from_millis(50);
/// Interval at which the elected process checks whether the others still exist.
const DEAD_PROCESS_CHECK_EVERY: Duration = Duration::from_millis(250);
/// Queue for events that are discarded.
const NO_QUEUE: Token = 0;

impl ConnectionManager {
    /// Claims the receive side of queue pair 1 if no process has it, and then disconnects for exited processes. Sets a
    /// timer for the next attempt.
    pub(super) fn elect(&mut self) {
        let Some(remote) = &self.remote else { return };
        let is_elected = remote.management().claim();
        if is_elected {
            self.disconnect_for_dead_processes();
        }
        let next = if is_elected { DEAD_PROCESS_CHECK_EVERY } else { ELECTION_EVERY };
        self.timers.add(Instant::now() + next, ELECTION);
    }

    fn disconnect_for_dead_processes(&mut self) {
        while let Some((dead, left)) =
            self.remote.as_mut().and_then(|remote| remote.journal().next_dead_process())
        {
            for record in left {
                self.disconnect_for(&record, None);
            }
            // Only after the records are in this process's section, because this process may be killed as well.
            if let Some(remote) = &mut self.remote {
                remote.journal().remove_process(dead);
            }
        }
    }

    /// Notifies the peer of a connection whose process has exited. `place` is the connection's record, if it is in
    /// this process's section.
    pub(super) fn disconnect_for(&mut self, record: &JournaledConnection, place: Option<RecordIndex>) {
        let (connection, dreq) = Connection::for_exited_process(record.qp_num);
        let mut end = CmEndpoint::new(NO_QUEUE);
        end.connection = Some(connection);
        end.ids = CommunicationIds::established(record.local, record.remote);
        let mut remote_end = RemoteEndpoint::new(record.peer);
        (remote_end.place, remote_end.is_orphaned) = (place, true);
        end.remote_end = Some(remote_end);
        let token = self.add_end(end);
        self.update_journal(token);
        self.send_remote(token, &dreq);
    }

    /// Sends the last message of an endpoint that its program destroys. Returns whether the endpoint remains, without
    /// its program, until its peer has replied.
    pub(super) fn begin_disconnect(&mut self, token: Token) -> bool {
        let Some(CmEndpoint { remote_end: Some(_), connection: Some(connection), .. }) =
            self.ends.get_mut(&token)
        else {
            return false;
        };
        let message = connection.disconnect().or_else(|| connection.reject(Vec::new()).ok());
        if let Some(message) = message {
            self.send_remote(token, &message);
        }
        let Some(end) = self.ends.get_mut(&token) else { return false };
        if end.connection.as_ref().map(Connection::state) != Some(State::DreqSent) {
            return false;
        }
        if let Some(remote_end) = &mut end.remote_end {
            remote_end.is_orphaned = true;
        }
        (end.id, end.port) = (None, None);
        let queue = std::mem::replace(&mut end.queue, NO_QUEUE);
        self.drop_events(queue, token);
        // It ends when its DREQ has been answered, or repeated the maximum number of times.
        self.wait_until(token, None);
        true
    }

    /// Ends the connections with other hosts because the process exits.
    pub fn shutdown(&mut self) {
        let remote_end = self.ends.iter().filter(|(_, end)| end.remote_end.is_some());
        let tokens: Vec<Token> = remote_end.map(|(token, _)| *token).collect();
        for token in tokens {
            self.begin_disconnect(token);
        }
    }

    /// Returns whether a peer has not confirmed the end of its connection.
    pub fn is_leaving(&self) -> bool {
        self.ends.values().any(|end| end.remote_end.as_ref().is_some_and(|remote_end| remote_end.is_orphaned))
    }

    /// Updates the journal: an endpoint is recorded while its peer must be notified of its end.
    pub(super) fn update_journal(&mut self, token: Token) {
        let Some(remote) = &mut self.remote else { return };
        let Some(CmEndpoint { remote_end: Some(remote_end), connection, ids, .. }) =
            self.ends.get_mut(&token)
        else {
            return;
        };
        match (connection.as_ref().and_then(Connection::waiting_qp_num), remote_end.place) {
            (Some(qp_num), None) => {
                let record = JournaledConnection {
                    peer: remote_end.peer,
                    local: ids.local(),
                    remote: ids.remote(),
                    qp_num,
                };
                remote_end.place = remote.journal().add(&record);
            }
            (None, Some(place)) => {
                remote.journal().remove(place);
                remote_end.place = None;
            }
            _ => {}
        }
    }
}

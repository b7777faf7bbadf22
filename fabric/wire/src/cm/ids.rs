//! Association of messages with connections (volume 1, section 12.6.1).

use crate::cm::mad::Mad;
use crate::cm::message::{Message, RejectedMessage};

/// The identifiers of one connection, or of one resolution of a datagram service, at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationIds {
    local: u32,
    /// 0 while it is unknown.
    remote: u32,
    transaction: u64,
}

impl CommunicationIds {
    /// Creates the identifiers of the requesting end.
    #[must_use]
    pub fn for_requester(local: u32) -> Self {
        Self { local, remote: 0, transaction: local.into() }
    }

    /// Creates the identifiers of the end that received the request `request`.
    #[must_use]
    pub fn for_responder(local: u32, request: &Mad) -> Self {
        Self { local, remote: request.local_comm_id, transaction: request.transaction_id }
    }

    /// Creates the identifiers of a connection that are known at both ends.
    #[must_use]
    pub fn established(local: u32, remote: u32) -> Self {
        Self { local, remote, transaction: 0 }
    }

    /// Returns the connection's identifier at this end.
    #[must_use]
    pub fn local(&self) -> u32 {
        self.local
    }

    /// Returns the connection's identifier at the peer; 0 while it is unknown.
    #[must_use]
    pub fn remote(&self) -> u32 {
        self.remote
    }

    /// Returns whether a message belongs to the connection. Replies to it carry the message's transaction ID.
    pub fn matches(&mut self, mad: &Mad) -> bool {
        let (is_question, is_last) = match mad.message {
            Message::Req(_) | Message::SidrReq(_) => (true, false),
            // The sender of a rejection may have no identifier for the connection. Once the peer has accepted the
            // request and has one, such a rejection of the request is from a process that no longer answers for the
            // peer's host: it was stopped after it had found no listener there, and is continued.
            Message::Rej(ref rejection) => {
                (false, self.remote == 0 || rejection.rejected != RejectedMessage::Req)
            }
            Message::SidrRep(_) => (false, true),
            _ => (false, false),
        };
        let is_of_peer = is_last || self.remote == 0 || self.remote == mad.local_comm_id;
        if is_question || mad.remote_comm_id != self.local || !is_of_peer {
            return false;
        }
        if matches!(mad.message, Message::Rep(_)) {
            self.remote = mad.local_comm_id;
        }
        self.transaction = mad.transaction_id;
        true
    }

    /// Creates a message of the connection.
    pub fn mad(&mut self, message: Message) -> Mad {
        if matches!(message, Message::Dreq { .. }) {
            // A DREQ begins a transaction of its own.
            self.transaction = 1 << 32 | u64::from(self.local);
        }
        let Self { local, remote, transaction } = *self;
        Mad { transaction_id: transaction, local_comm_id: local, remote_comm_id: remote, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::message::Rejection;

    fn rej() -> Message {
        Message::Rej(Rejection { rejected: RejectedMessage::Req, reason: 28, private_data: Vec::new() })
    }

    #[test]
    fn messages_of_other_connections_are_not_admitted() {
        let mut active = CommunicationIds::for_requester(7);
        // A request is identified by its transaction ID and its sender's identifier, whatever its contents.
        let request = active.mad(Message::Rtu);
        assert_eq!((request.local_comm_id, request.remote_comm_id), (7, 0));
        let mut passive = CommunicationIds::for_responder(9, &request);
        let answer = passive.mad(Message::Drep);
        assert_eq!((answer.transaction_id, answer.local_comm_id, answer.remote_comm_id), (7, 9, 7));
        assert!(!active.matches(&Mad { remote_comm_id: 8, ..answer.clone() }), "for another");
        assert!(active.matches(&answer));
        assert!(passive.matches(&Mad { remote_comm_id: 9, ..request.clone() }));
        assert!(
            !passive.matches(&Mad { local_comm_id: 6, remote_comm_id: 9, ..request.clone() }),
            "of another"
        );
    }

    #[test]
    fn admits_no_rejection_of_an_accepted_request() {
        let mut active = CommunicationIds::for_requester(7);
        let request = active.mad(Message::Rtu);
        let without_id = CommunicationIds::for_responder(0, &request).mad(rej());
        assert_eq!(without_id.local_comm_id, 0);
        assert!(active.matches(&without_id), "no listener");
        active.remote = 9;
        assert!(!active.matches(&without_id), "the request was accepted");
        assert!(active.matches(&CommunicationIds::for_responder(9, &request).mad(rej())), "of the peer");
        let other = Message::Rej(Rejection {
            rejected: RejectedMessage::Other,
            reason: 28,
            private_data: Vec::new(),
        });
        assert!(active.matches(&CommunicationIds::for_responder(0, &request).mad(other)));
    }
}

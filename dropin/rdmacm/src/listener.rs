//! Listening endpoints: their backlogs, and the requests that they refuse.

use std::sync::Arc;

use farcall_wire::cm::{
    IpRoute, Message, RejectedMessage, Rejection, Request, ServiceReply, ServiceRequest, reason,
};

/// Slot of a request in a backlog.
#[derive(Clone, Default)]
pub struct Slot(Arc<()>);

/// State of a listening endpoint.
pub struct Listening {
    /// Maximum number of requests that wait for the program.
    backlog: usize,
    /// Reference count of the slots: each waiting request holds a clone.
    slots: Slot,
    /// Whether it accepts no IPv4 connections.
    is_v6_only: bool,
    /// Whether it accepts requests for the queue pairs of datagram services rather than for connections.
    is_datagram: bool,
}

impl Listening {
    pub fn new(backlog: usize, is_v6_only: bool, is_datagram: bool) -> Self {
        Self { backlog, slots: Slot::default(), is_v6_only, is_datagram }
    }

    /// Returns the slot of a request, which counts while it exists.
    pub fn slot(&self) -> Slot {
        self.slots.clone()
    }

    fn is_full(&self) -> bool {
        Arc::strong_count(&self.slots.0) > self.backlog
    }
}

/// A peer's request.
pub enum IncomingRequest {
    Connection(Request),
    Service(ServiceRequest),
}

impl IncomingRequest {
    /// Returns `None` for a message that is not a request.
    pub fn of(message: Message) -> Option<Self> {
        match message {
            Message::Req(request) => Some(Self::Connection(request)),
            Message::SidrReq(request) => Some(Self::Service(request)),
            _ => None,
        }
    }

    /// Returns the addresses of the request.
    pub fn route(&self) -> &IpRoute {
        match self {
            Self::Connection(request) => &request.route,
            Self::Service(request) => &request.route,
        }
    }

    /// Returns the message that rejects it.
    pub fn refused(&self, reason: u16, status: u8) -> Message {
        let private_data = Vec::new();
        match self {
            Self::Connection(_) => {
                Message::Rej(Rejection { rejected: RejectedMessage::Req, reason, private_data })
            }
            Self::Service(request) => {
                let service_id = request.route.service_id();
                Message::SidrRep(ServiceReply { status, qp_num: 0, service_id, qkey: 0, private_data })
            }
        }
    }
}

impl Listening {
    /// Returns the rejection of a request that does not match this listener, or for which the backlog has no room.
    pub fn refusal(&self, incoming: &IncomingRequest) -> Option<Message> {
        let is_datagram = matches!(incoming, IncomingRequest::Service(_));
        let route = incoming.route();
        let is_for_us = is_datagram == self.is_datagram && !(self.is_v6_only && route.to.is_ipv4());
        if !is_for_us {
            return Some(incoming.refused(reason::INVALID_SERVICE_ID, reason::SIDR_UNSUPPORTED));
        }
        self.is_full().then(|| incoming.refused(reason::CONSUMER_DEFINED, reason::SIDR_REJECT))
    }
}

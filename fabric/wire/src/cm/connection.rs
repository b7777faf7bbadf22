//! The states of a connection and their transitions.

use crate::cm::message::{Message, RejectedMessage, Rejection, Reply, Request, ServiceReply, ServiceRequest};
use crate::cm::reason;

/// The state of a connection (volume 1, section 12.9, simplified).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A REQ was sent; a REP or a REJ is expected.
    ReqSent,
    /// A REP was received; the program has not called [`Connection::ready`] yet.
    RepReceived,
    /// A REQ was received; the program has not replied yet.
    ReqReceived,
    /// A REP was sent; an RTU is expected.
    RepSent,
    /// Both ends are ready.
    Established,
    /// A DREQ was sent; a DREP is expected.
    DreqSent,
    /// Closed; packets of the connection may still be in flight.
    TimeWait,
    /// A SIDR REQ was sent; a SIDR REP is expected.
    SidrSent,
    /// A SIDR REQ was received; the program has not replied yet.
    SidrReceived,
    /// Closed.
    Closed,
}

/// An event to report to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer accepted; the program calls [`Connection::ready`] next.
    Response(Reply),
    /// The peer rejected the request, or exited before the connection was established.
    Rejected(Rejection),
    /// The connection is established.
    Established,
    /// The connection is closed.
    Disconnected,
    /// The queue pair of a datagram service, or the reason why there is none.
    Service(ServiceReply),
    /// The peer did not reply in time.
    Unreachable,
    /// No packet of the connection is in flight any more: its queue pair may be reused.
    TimewaitExit,
}

/// Actions required after a state change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// A message to send to the peer.
    pub message: Option<Message>,
    /// An event to report to the program.
    pub event: Option<Event>,
}

impl Step {
    fn event(event: Event) -> Self {
        Self { message: None, event: Some(event) }
    }
}

/// The call is not allowed in the connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not possible in state {0:?}")]
pub struct WrongState(pub State);

/// One connection, or one resolution of a datagram service (SIDR).
#[derive(Debug)]
pub struct Connection {
    state: State,
    /// The peer's queue pair, as far as it is known.
    peer_qp_num: u32,
    /// Service ID of a service resolution.
    service_id: u64,
}

impl Connection {
    /// The active side: returns the REQ to send.
    #[must_use]
    pub fn request(request: Request) -> (Self, Message) {
        (Self::new(State::ReqSent), Message::Req(request))
    }

    /// The active side of a service resolution: returns the SIDR REQ to send.
    #[must_use]
    pub fn resolve_service(request: ServiceRequest) -> (Self, Message) {
        let service_id = request.route.service_id();
        (Self { service_id, ..Self::new(State::SidrSent) }, Message::SidrReq(request))
    }

    /// The passive side, after a REQ was received.
    #[must_use]
    pub fn requested(request: &Request) -> Self {
        Self { peer_qp_num: request.qp.qp_num, ..Self::new(State::ReqReceived) }
    }

    /// The passive side of a service resolution, after a SIDR REQ was received.
    #[must_use]
    pub fn service_requested(request: &ServiceRequest) -> Self {
        Self { service_id: request.route.service_id(), ..Self::new(State::SidrReceived) }
    }

    /// The end of an established connection whose process has exited: returns the DREQ to send on behalf of that
    /// process.
    #[must_use]
    pub fn for_exited_process(peer_qp_num: u32) -> (Self, Message) {
        let dreq = Message::Dreq { remote_qp_num: peer_qp_num };
        (Self { peer_qp_num, ..Self::new(State::DreqSent) }, dreq)
    }

    fn new(state: State) -> Self {
        Self { state, peer_qp_num: 0, service_id: 0 }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the queue pair of a peer that waits for a message about the end of the connection; `None` if no peer
    /// waits.
    #[must_use]
    pub fn waiting_qp_num(&self) -> Option<u32> {
        let is_waiting =
            matches!(self.state, State::RepReceived | State::RepSent | State::Established | State::DreqSent);
        is_waiting.then_some(self.peer_qp_num)
    }

    /// Returns whether a peer has sent a request and waits until the connection is established or rejected.
    #[must_use]
    pub fn is_half_open(&self) -> bool {
        matches!(self.state, State::ReqReceived | State::RepSent | State::SidrReceived)
    }

    /// Handles a message of the peer. One that is not allowed in the state ends the connection.
    pub fn received(&mut self, message: Message) -> Step {
        match (self.state, message) {
            (State::ReqSent, Message::Rep(reply)) => {
                self.state = State::RepReceived;
                self.peer_qp_num = reply.qp.qp_num;
                Step::event(Event::Response(reply))
            }
            (
                State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent,
                Message::Rej(rejection),
            ) => {
                self.state = State::Closed;
                Step::event(Event::Rejected(rejection))
            }
            (State::RepSent, Message::Rtu) => {
                self.state = State::Established;
                Step::event(Event::Established)
            }
            // The program has called `comm_established` before.
            (State::Established, Message::Rtu) => Step::default(),
            (
                State::RepReceived | State::RepSent | State::Established | State::DreqSent,
                Message::Dreq { .. },
            ) => {
                self.state = State::TimeWait;
                Step { message: Some(Message::Drep), event: Some(Event::Disconnected) }
            }
            (State::DreqSent, Message::Drep) => {
                self.state = State::TimeWait;
                Step::event(Event::Disconnected)
            }
            (State::SidrSent, Message::SidrRep(reply)) => {
                self.state = State::Closed;
                Step::event(Event::Service(reply))
            }
            // The reply will take longer.
            (_, Message::Mra { .. }) | (State::TimeWait | State::Closed, _) => Step::default(),
            _ => self.peer_closed(),
        }
    }

    /// Handles the end of a peer that sent no message.
    pub fn peer_closed(&mut self) -> Step {
        let gone = rejection(RejectedMessage::Other, reason::CONSUMER_DEFINED, Vec::new());
        let (state, event) = match self.state {
            State::ReqSent | State::ReqReceived | State::RepSent => (State::Closed, Event::Rejected(gone)),
            // The program first receives the event of the REP, then the one of the end.
            State::RepReceived | State::Established | State::DreqSent => {
                (State::TimeWait, Event::Disconnected)
            }
            State::SidrSent => (State::Closed, Event::Service(self.no_service(reason::SIDR_REJECT))),
            State::SidrReceived => {
                self.state = State::Closed;
                return Step::default();
            }
            State::TimeWait | State::Closed => return Step::default(),
        };
        self.state = state;
        Step::event(event)
    }

    /// Handles the error that the peer's address has no listener.
    pub fn refused(&mut self) -> Step {
        let nobody = rejection(RejectedMessage::Req, reason::INVALID_SERVICE_ID, Vec::new());
        let event = match self.state {
            State::ReqSent => Event::Rejected(nobody),
            State::SidrSent => Event::Service(self.no_service(reason::SIDR_UNSUPPORTED)),
            _ => return Step::default(),
        };
        self.state = State::Closed;
        Step::event(event)
    }

    /// The timer of the state has expired.
    pub fn timed_out(&mut self) -> Step {
        let (state, event) = match self.state {
            State::ReqSent | State::SidrSent | State::RepSent => (State::Closed, Event::Unreachable),
            State::DreqSent => (State::TimeWait, Event::Disconnected),
            State::TimeWait => (State::Closed, Event::TimewaitExit),
            _ => return Step::default(),
        };
        self.state = state;
        Step::event(event)
    }

    /// Accepts the request for a connection.
    ///
    /// # Errors
    /// Returns [`WrongState`] if there is no request.
    pub fn accept(&mut self, reply: Reply) -> Result<Message, WrongState> {
        self.transition(State::ReqReceived, State::RepSent)?;
        Ok(Message::Rep(reply))
    }

    /// Accepts datagrams, with the given queue pair and Q_Key.
    ///
    /// # Errors
    /// Returns [`WrongState`] if there is no request.
    pub fn serve(&mut self, qp_num: u32, qkey: u32, private_data: Vec<u8>) -> Result<Message, WrongState> {
        self.transition(State::SidrReceived, State::Closed)?;
        let Self { service_id, .. } = *self;
        let status = reason::SIDR_SUCCESS;
        Ok(Message::SidrRep(ServiceReply { status, qp_num, service_id, qkey, private_data }))
    }

    /// Rejects the request.
    ///
    /// # Errors
    /// Returns [`WrongState`] if there is no request.
    pub fn reject(&mut self, private_data: Vec<u8>) -> Result<Message, WrongState> {
        let no = match self.state {
            State::ReqReceived => {
                Message::Rej(rejection(RejectedMessage::Req, reason::CONSUMER_DEFINED, private_data))
            }
            State::RepReceived => {
                Message::Rej(rejection(RejectedMessage::Rep, reason::CONSUMER_DEFINED, private_data))
            }
            State::SidrReceived => {
                Message::SidrRep(ServiceReply { private_data, ..self.no_service(reason::SIDR_REJECT) })
            }
            other => return Err(WrongState(other)),
        };
        self.state = State::Closed;
        Ok(no)
    }

    /// Confirms the REP. Returns `None` if the peer has ended the connection in the meantime.
    ///
    /// # Errors
    /// Returns [`WrongState`] if there was no REP.
    pub fn ready(&mut self) -> Result<Option<Message>, WrongState> {
        if self.state == State::TimeWait {
            return Ok(None);
        }
        self.transition(State::RepReceived, State::Established)?;
        Ok(Some(Message::Rtu))
    }

    /// Records that the program received a message over the connection before the RTU (`IBV_EVENT_COMM_EST`).
    ///
    /// # Errors
    /// Returns [`WrongState`] if there is no connection.
    pub fn comm_established(&mut self) -> Result<Step, WrongState> {
        if self.state == State::Established {
            return Ok(Step::default());
        }
        self.transition(State::RepSent, State::Established)?;
        Ok(Step::event(Event::Established))
    }

    /// Ends the connection. Returns `None` if there is none any more: the peer may have ended it first.
    pub fn disconnect(&mut self) -> Option<Message> {
        match self.state {
            State::Established | State::RepSent | State::RepReceived => {
                self.state = State::DreqSent;
                Some(Message::Dreq { remote_qp_num: self.peer_qp_num })
            }
            _ => None,
        }
    }

    fn no_service(&self, status: u8) -> ServiceReply {
        ServiceReply { status, qp_num: 0, service_id: self.service_id, qkey: 0, private_data: Vec::new() }
    }

    fn transition(&mut self, from: State, to: State) -> Result<(), WrongState> {
        if self.state != from {
            return Err(WrongState(self.state));
        }
        self.state = to;
        Ok(())
    }
}

fn rejection(rejected: RejectedMessage, reason: u16, private_data: Vec<u8>) -> Rejection {
    Rejection { rejected, reason, private_data }
}

#[cfg(test)]
mod tests;

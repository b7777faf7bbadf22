//! The states of a connection, and what moves it from one to the next.

use crate::message::{Message, Rejection, Reply, Request, ServiceReply, ServiceRequest};
use crate::reason;

/// Where a connection stands (volume 1, section 12.9, in few words).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A REQ was sent; a REP or a REJ will come.
    ReqSent,
    /// A REP came; the program has not said yet that it is ready.
    RepReceived,
    /// A REQ came; the program has not answered yet.
    ReqReceived,
    /// A REP was sent; an RTU will come.
    RepSent,
    /// Both ends are ready.
    Established,
    /// A DREQ was sent; a DREP will come.
    DreqSent,
    /// Over; late packets may still be under way.
    TimeWait,
    /// A SIDR REQ was sent; a SIDR REP will come.
    SidrSent,
    /// A SIDR REQ came; the program has not answered yet.
    SidrReceived,
    /// Over.
    Closed,
}

/// What the program should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer accepted; the program says when it is ready ([`Connection::ready`]).
    Response(Reply),
    /// The peer refused, or is gone before there was a connection.
    Rejected(Rejection),
    /// The connection can be used.
    Established,
    /// The connection is over.
    Disconnected,
    /// A queue pair that serves datagrams, or why there is none.
    Service(ServiceReply),
    /// No answer in time.
    Unreachable,
    /// No packet of the connection is under way any more: its queue pair may be used anew.
    TimewaitExit,
}

/// What follows from something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be sent to the peer.
    pub say: Option<Message>,
    /// To be told to the program.
    pub event: Option<Event>,
}

impl Step {
    fn event(event: Event) -> Self {
        Self { say: None, event: Some(event) }
    }
}

/// The program asked for what the connection's state does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not possible in state {0:?}")]
pub struct WrongState(pub State);

/// One connection, or one look-up of a datagram service.
#[derive(Debug)]
pub struct Connection {
    state: State,
}

impl Connection {
    /// Asks for a connection.
    #[must_use]
    pub fn ask(request: Request) -> (Self, Message) {
        (Self { state: State::ReqSent }, Message::Req(request))
    }

    /// Asks for the queue pair of a datagram service.
    #[must_use]
    pub fn look_up(request: ServiceRequest) -> (Self, Message) {
        (Self { state: State::SidrSent }, Message::SidrReq(request))
    }

    /// A peer asked for a connection.
    #[must_use]
    pub fn asked() -> Self {
        Self { state: State::ReqReceived }
    }

    /// A peer asked for the queue pair of a datagram service.
    #[must_use]
    pub fn looked_up() -> Self {
        Self { state: State::SidrReceived }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// A message came. One that does not belong here ends the connection: the peer does not know what it does.
    pub fn heard(&mut self, message: Message) -> Step {
        match (self.state, message) {
            (State::ReqSent, Message::Rep(reply)) => {
                self.state = State::RepReceived;
                Step::event(Event::Response(reply))
            }
            (State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent, Message::Rej(no)) => {
                self.state = State::Closed;
                Step::event(Event::Rejected(no))
            }
            (State::RepSent, Message::Rtu) => {
                self.state = State::Established;
                Step::event(Event::Established)
            }
            // The program said already that the peer uses it.
            (State::Established, Message::Rtu) => Step::default(),
            (State::RepReceived | State::RepSent | State::Established | State::DreqSent, Message::Dreq) => {
                self.state = State::TimeWait;
                Step { say: Some(Message::Drep), event: Some(Event::Disconnected) }
            }
            (State::DreqSent, Message::Drep) => {
                self.state = State::TimeWait;
                Step::event(Event::Disconnected)
            }
            (State::SidrSent, Message::SidrRep(reply)) => {
                self.state = State::Closed;
                Step::event(Event::Service(reply))
            }
            (State::TimeWait | State::Closed, _) => Step::default(),
            _ => self.hung_up(),
        }
    }

    /// The peer is gone, without a word.
    pub fn hung_up(&mut self) -> Step {
        let gone = Rejection { reason: reason::CONSUMER_DEFINED, private_data: Vec::new() };
        let (state, event) = match self.state {
            State::ReqSent | State::ReqReceived | State::RepSent => (State::Closed, Event::Rejected(gone)),
            // Whoever gets to know of the REP hears of the end after it.
            State::RepReceived | State::Established | State::DreqSent => {
                (State::TimeWait, Event::Disconnected)
            }
            State::SidrSent => (State::Closed, Event::Service(no_service(reason::SIDR_REJECT))),
            State::SidrReceived => {
                self.state = State::Closed;
                return Step::default();
            }
            State::TimeWait | State::Closed => return Step::default(),
        };
        self.state = state;
        Step::event(event)
    }

    /// Nobody listens at the peer's address.
    pub fn refused(&mut self) -> Step {
        let nobody = Rejection { reason: reason::INVALID_SERVICE_ID, private_data: Vec::new() };
        let event = match self.state {
            State::ReqSent => Event::Rejected(nobody),
            State::SidrSent => Event::Service(no_service(reason::SIDR_UNSUPPORTED)),
            _ => return Step::default(),
        };
        self.state = State::Closed;
        Step::event(event)
    }

    /// The time for what it waits for is over.
    pub fn timed_out(&mut self) -> Step {
        let (state, event) = match self.state {
            State::ReqSent | State::SidrSent => (State::Closed, Event::Unreachable),
            State::DreqSent => (State::TimeWait, Event::Disconnected),
            State::TimeWait => (State::Closed, Event::TimewaitExit),
            _ => return Step::default(),
        };
        self.state = state;
        Step::event(event)
    }

    /// The program accepts a connection.
    ///
    /// # Errors
    /// If there is no request to answer.
    pub fn accept(&mut self, reply: Reply) -> Result<Message, WrongState> {
        self.go(State::ReqReceived, State::RepSent)?;
        Ok(Message::Rep(reply))
    }

    /// The program serves datagrams.
    ///
    /// # Errors
    /// If there is no request to answer.
    pub fn serve(&mut self, reply: ServiceReply) -> Result<Message, WrongState> {
        self.go(State::SidrReceived, State::Closed)?;
        Ok(Message::SidrRep(reply))
    }

    /// The program refuses.
    ///
    /// # Errors
    /// If there is no request to answer.
    pub fn reject(&mut self, private_data: Vec<u8>) -> Result<Message, WrongState> {
        let no = match self.state {
            State::ReqReceived | State::RepReceived => {
                Message::Rej(Rejection { reason: reason::CONSUMER_DEFINED, private_data })
            }
            State::SidrReceived => {
                Message::SidrRep(ServiceReply { private_data, ..no_service(reason::SIDR_REJECT) })
            }
            other => return Err(WrongState(other)),
        };
        self.state = State::Closed;
        Ok(no)
    }

    /// The program has heard of the REP and is ready. `None` if the peer has gone meanwhile.
    ///
    /// # Errors
    /// If there was no REP.
    pub fn ready(&mut self) -> Result<Option<Message>, WrongState> {
        if self.state == State::TimeWait {
            return Ok(None);
        }
        self.go(State::RepReceived, State::Established)?;
        Ok(Some(Message::Rtu))
    }

    /// The program sees the peer using the connection before its RTU is here.
    ///
    /// # Errors
    /// If there is no connection.
    pub fn in_use(&mut self) -> Result<Step, WrongState> {
        if self.state == State::Established {
            return Ok(Step::default());
        }
        self.go(State::RepSent, State::Established)?;
        Ok(Step::event(Event::Established))
    }

    /// The program ends the connection. `None` if there is none (any more): then there is nothing to end, which is no fault,
    /// for the peer may have been faster.
    pub fn disconnect(&mut self) -> Option<Message> {
        match self.state {
            State::Established | State::RepSent | State::RepReceived => {
                self.state = State::DreqSent;
                Some(Message::Dreq)
            }
            _ => None,
        }
    }

    fn go(&mut self, from: State, to: State) -> Result<(), WrongState> {
        if self.state != from {
            return Err(WrongState(self.state));
        }
        self.state = to;
        Ok(())
    }
}

fn no_service(status: u8) -> ServiceReply {
    ServiceReply { status, qp_num: 0, qkey: 0, gid: [0; 16], private_data: Vec::new() }
}

#[cfg(test)]
mod tests;

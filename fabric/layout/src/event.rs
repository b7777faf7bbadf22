//! `enum ibv_event_type`: the events that Farcall has a word for. Path migration and the subnet manager's changes have
//! none.

use std::ffi::c_int;

use farcall_verbs::AsyncEventKind;

/// What the element of an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Cq,
    Qp,
    Srq,
    /// A port number. 0 for events of the whole device.
    Port,
}

const EVENTS: [(c_int, AsyncEventKind, Element); 12] = [
    (0, AsyncEventKind::CqErr, Element::Cq),
    (1, AsyncEventKind::QpFatal, Element::Qp),
    (2, AsyncEventKind::QpReqErr, Element::Qp),
    (3, AsyncEventKind::QpAccessErr, Element::Qp),
    (4, AsyncEventKind::CommEst, Element::Qp),
    (5, AsyncEventKind::SqDrained, Element::Qp),
    (8, AsyncEventKind::DeviceFatal, Element::Port),
    (9, AsyncEventKind::PortActive, Element::Port),
    (10, AsyncEventKind::PortErr, Element::Port),
    (14, AsyncEventKind::SrqErr, Element::Srq),
    (15, AsyncEventKind::SrqLimitReached, Element::Srq),
    (16, AsyncEventKind::QpLastWqeReached, Element::Qp),
];

/// The event of libibverbs' number; `None` if Farcall has no word for it.
pub fn event_of(event_type: c_int) -> Option<(AsyncEventKind, Element)> {
    EVENTS.iter().find(|(number, ..)| *number == event_type).map(|(_, kind, element)| (*kind, *element))
}

/// libibverbs' number of an event; `None` for a kind that libibverbs does not have.
pub fn event_type(kind: AsyncEventKind) -> Option<(c_int, Element)> {
    EVENTS.iter().find(|(_, of, _)| *of == kind).map(|(number, _, element)| (*number, *element))
}

//! `enum ibv_event_type`: the events that `farcall-verbs` defines. It has none for path migration and for changes of
//! the subnet manager.

use std::ffi::c_int;

use farcall_verbs::AsyncEventKind;

/// Kind of object that an event refers to.
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

/// Returns the event with libibverbs' number; `None` if `farcall-verbs` does not define it.
pub fn event_of(event_type: c_int) -> Option<(AsyncEventKind, Element)> {
    EVENTS.iter().find(|(number, ..)| *number == event_type).map(|(_, kind, element)| (*kind, *element))
}

/// Returns libibverbs' number of an event; `None` for a kind that libibverbs does not have.
pub fn event_type(kind: AsyncEventKind) -> Option<(c_int, Element)> {
    EVENTS.iter().find(|(_, of, _)| *of == kind).map(|(number, _, element)| (*number, *element))
}

//! Asynchronous events (`ibv_async_event`).

/// Kind of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AsyncEventKind {
    /// A completion queue overran; its queue pairs go to the error state.
    CqErr,
    /// A queue pair failed, and no work request can report the failure.
    QpFatal,
    /// A request broke the transport's rules at a responder.
    QpReqErr,
    /// A request failed the access check at a responder.
    QpAccessErr,
    /// The first message arrived before the local side had established the connection.
    CommEst,
    /// A draining send queue is empty.
    SqDrained,
    /// The last receive of a queue pair in error was consumed from its shared receive queue.
    QpLastWqeReached,
    /// A shared receive queue fell below its limit.
    SrqLimitReached,
    /// A shared receive queue failed.
    SrqErr,
    /// The port came up.
    PortActive,
    /// The port went down.
    PortErr,
    /// The device failed.
    DeviceFatal,
}

/// An event and its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AsyncEvent {
    /// Kind of the event.
    pub kind: AsyncEventKind,
    /// Number of the affected object: queue pair number, CQ id, SRQ number or port number.
    pub element: u32,
}

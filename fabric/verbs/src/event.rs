//! Asynchronous events (`ibv_async_event`).

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AsyncEventKind {
    /// A completion queue overran; its queue pairs go to the error state.
    CqErr,
    /// A queue pair failed without a work request to tell it by.
    QpFatal,
    /// A request broke the transport's rules at a responder.
    QpReqErr,
    /// A request was not allowed to access memory at a responder.
    QpAccessErr,
    /// The first message came before the connection was told established.
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

/// An event and the object it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// The queue pair number, CQ id, SRQ number or port number it happened to.
    pub element: u32,
}

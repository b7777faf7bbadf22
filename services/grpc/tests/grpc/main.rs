//! gRPC over streams, compared with tonic over TCP: the same service and the same assertions.

mod direct;
mod endings;
mod flow;
mod hostile;
mod hosts;
mod kinds;
mod lives;
mod support;
mod surroundings;

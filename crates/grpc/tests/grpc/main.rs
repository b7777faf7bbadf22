//! gRPC over streams, against tonic over TCP: the same service, the same assertions.

mod direct;
mod endings;
mod flow;
mod hosts;
mod hostile;
mod kinds;
mod lives;
mod support;
mod surroundings;

//! gRPC over streams, against tonic over TCP: the same service, the same assertions.

mod direct;
mod endings;
mod flow;
mod hostile;
mod hosts;
mod kinds;
mod lives;
mod support;
mod surroundings;

//! The client: a channel, and the responses of its calls.

mod channel;
mod response;
mod unary;

pub use channel::Channel;
pub use response::ResponseFuture;

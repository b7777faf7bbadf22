//! The client: a channel, and the responses of its calls.

mod channel;
mod response;

pub use channel::Channel;
pub use response::ResponseFuture;

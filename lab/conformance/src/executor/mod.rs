//! Executors of the calls of one end: a provider in this process, or an agent in another.

mod agent;
mod call;
mod local;
mod memory;
mod objects;
mod remote;

pub use agent::serve;
pub use call::{
    About, Answer, Call, Cq, Handle, Memory, Mr, Qp, QpInit, Reason, RecvRequest, Refusal, SendRequest,
    Target,
};
pub use local::{Local, Sleep};
pub use remote::Remote;

/// Device of one end, with all objects that a case creates on it.
pub trait Executor {
    /// Executes a call.
    ///
    /// # Errors
    /// Returns an error if the provider refuses the call, or if the end cannot be reached ([`Reason::Harness`]).
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal>;
}

//! What executes the calls of one end: a provider in this process, or an agent in another.

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

/// A device of one end and everything that a case makes on it.
pub trait Executor {
    /// Does what is asked.
    ///
    /// # Errors
    /// If the provider refuses, or the end cannot be reached ([`Reason::Harness`]).
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal>;
}

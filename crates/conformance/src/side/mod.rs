//! One end of a case: what executes its calls, here or elsewhere.

mod agent;
mod call;
mod local;
mod memory;
mod remote;

pub use agent::serve;
pub use call::{
    About, Answer, Call, Cq, Event, Handle, Memory, Mr, Path, Piece, Qp, QpMake, Reason, RecvRequest,
    Refusal, SendRequest, Target,
};
pub(crate) use call::{mtu_from, state_from};
pub use local::{Local, Sleep};
pub use remote::Remote;

/// One end: a device of its own and everything a case makes on it.
pub trait Side {
    /// Does what is asked.
    ///
    /// # Errors
    /// If the provider refuses, or the end cannot be reached ([`Reason::Harness`]).
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal>;
}

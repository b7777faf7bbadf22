//! Checkers: what a run must have kept to, found out without knowing how it works inside.
//!
//! * [`Ledger`]: every work request completes exactly once and in the order of its queue, or is flushed.
//! * [`Image`]: memory holds what acknowledged operations left there, to the byte.
//! * [`linearizable`]: a concurrent history has an order in which one object at a time could have answered it.

mod image;
mod ledger;
mod linear;
mod register;

pub use image::{Image, WriteId, Wrong};
pub use ledger::{Ledger, Queue, Violation};
pub use linear::{NotLinearizable, Operation, Sequential, linearizable};
pub use register::{Register, RegisterOp};

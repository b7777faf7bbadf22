//! Checkers: what a run must have kept to, found out without knowing how it works inside.
//!
//! * [`Ledger`]: every work request completes exactly once and in the order of its queue, or is flushed.
//! * [`Deliveries`]: messages come whole, as often and in the order that their transport promises.
//! * [`SharedReceives`]: each receive of a shared queue is consumed at most once, none is lost, limits are told once.
//! * [`Image`]: memory holds what acknowledged operations left there, to the byte, or what others may have left.
//! * [`linearizable`]: a concurrent history has an order in which one object at a time could have answered it.

mod delivery;
mod image;
mod ledger;
mod linear;
mod register;
mod shared;

pub use delivery::{Deliveries, Promise};
pub use image::{Image, WriteId, Wrong};
pub use ledger::{Ledger, Queue, Violation};
pub use linear::{NotLinearizable, Operation, Sequential, linearizable};
pub use register::{Register, RegisterOp};
pub use shared::SharedReceives;

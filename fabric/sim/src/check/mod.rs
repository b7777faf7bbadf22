//! Checkers of the guarantees of a run, independent of the implementation.
//!
//! * [`Ledger`]: every work request completes exactly once and in the order of its queue, or is flushed.
//! * [`Deliveries`]: messages arrive complete, as often and in the order that their transport guarantees.
//! * [`SharedReceives`]: each receive of a shared receive queue is consumed at most once, none is lost, and each armed
//!   limit raises one event.
//! * [`Image`]: memory contains exactly the bytes of acknowledged operations, or those of operations that may have been
//!   executed.
//! * [`linearizable`]: a concurrent history has a sequential order that explains its results.

mod delivery;
mod image;
mod ledger;
mod linear;
mod register;
mod shared;

pub use delivery::{Deliveries, DeliveryGuarantee};
pub use image::{Image, WriteId, Wrong};
pub use ledger::{Ledger, Queue, Violation};
pub use linear::{NotLinearizable, Operation, Sequential, linearizable};
pub use register::{Register, RegisterOp};
pub use shared::SharedReceives;

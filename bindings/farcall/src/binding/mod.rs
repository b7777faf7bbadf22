//! Code that the bindings to other languages share: failures as numbers with texts ([`Failure`]), objects that one
//! thread at a time uses ([`Exclusive`]), and opening of clients, servers and streams with options that are plain data
//! ([`Options`]).
//!
//! A binding only translates. Decisions that several bindings would make in the same way are made here.

mod code;
mod exclusive;
mod failure;
mod options;

pub use code::Code;
pub use exclusive::Exclusive;
pub use failure::{Failure, version};
pub use options::Options;

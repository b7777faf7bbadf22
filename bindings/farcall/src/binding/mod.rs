//! What bindings to other languages share: failures as numbers with texts ([`Failure`]), objects that one thread at a time
//! uses ([`Exclusive`]), and how ends are opened from options that are plain data ([`Options`]).
//!
//! A binding translates and decides nothing. Where two of them would decide alike, it stands here.

mod code;
mod exclusive;
mod failure;
mod options;

pub use code::Code;
pub use exclusive::Exclusive;
pub use failure::{Failure, version};
pub use options::Options;

//! Memory that other processes write: segments, and the only module that loads from and stores to them.

#[cfg(not(loom))]
mod address_space;
mod memory;
#[cfg(not(loom))]
mod segment;
mod store_hook;

#[cfg(not(loom))]
pub(crate) use address_space::{AddressSpace, Fault, MAX_PIECES, Piece};
pub(crate) use memory::SharedMem;
#[cfg(not(loom))]
pub(crate) use memory::{AtomicChange, SharedWord, copy_in_order, copy_out, copy_plain, update_word};
#[cfg(not(loom))]
pub(crate) use segment::{Mapping, Segment};
#[cfg(not(loom))]
pub use store_hook::arm_store_hook;
pub(crate) use store_hook::step as before_store;

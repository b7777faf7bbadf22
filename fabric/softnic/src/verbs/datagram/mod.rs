//! Datagram queue pairs (UD) and address handles as their owner holds them.

mod address_handle;
mod drained;
mod handle;

pub(crate) use address_handle::{AddressWay, SoftAddressHandle};
pub(crate) use handle::DatagramQp;

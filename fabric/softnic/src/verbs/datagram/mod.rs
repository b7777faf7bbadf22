//! Datagram queue pairs (UD) and address handles: the program's handles.

mod address_handle;
mod deferred_send;
mod handle;

pub(crate) use address_handle::{AddressRoute, SoftAddressHandle};
pub(crate) use handle::DatagramQp;

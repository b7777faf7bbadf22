//! Datagram queue pairs (UD): anyone who knows number and Q_Key of a pair may send to it.
//!
//! One writer per cache line holds here too: each pair of sender and receiver has a ring of its own, which the receiver's
//! process makes when the sender's first datagram asks for it ([`Pending`]), and takes back when the sender ends or too
//! many others want one ([`Inlets`]). The ring's bit in the receive completion queue's readiness says where to look, so a
//! poll costs nothing for senders that are quiet. What every sender must know of the receiver (open or not, Q_Key,
//! receives posted and taken) stands on one [`Board`] that only the receiver writes.
//!
//! A datagram is copied into the ring by the sender and out of it by the receiver, so neither touches the other's memory
//! and there is nothing to revoke. What cannot be delivered is dropped and counted; its sender has succeeded. A receiver that is
//! only slower than its sender loses nothing: the send queue stands still for it, as behind a link that takes no more, as
//! long as it takes datagrams or posts receives ([`HeldSends`]).

mod address_handle;
mod board;
mod core;
mod counters;
mod drained;
mod grh;
mod handle;
mod held;
mod inlet;
mod inlets;
mod outlet;
mod pending;
mod receives;
mod routes;

pub(crate) use self::core::DatagramCore;
pub(crate) use address_handle::SoftAddressHandle;
pub(crate) use handle::DatagramQp;

use board::{Board, BoardView};
use counters::{Counters, Fate};
use grh::{GRH_BYTES, grh};
use held::{Held, HeldSends};
use inlet::{Inlet, Receiver};
use inlets::Inlets;
use outlet::{Message, Outlet};
use pending::Pending;
use receives::Receives;
use routes::Routes;

/// Payload bytes of a datagram at most: the port's MTU.
pub(crate) const MAX_DATAGRAM_BYTES: usize = 4096;

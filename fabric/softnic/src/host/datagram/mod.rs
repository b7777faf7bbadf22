//! Datagram queue pairs (UD): anyone who knows number and Q_Key of a pair may send to it.
//!
//! One writer per cache line holds here too: each pair of sender and receiver has a ring of its own, which the
//! receiver's process makes when the sender's first datagram asks for it ([`Pending`]), and takes back when the
//! sender ends or too many others want one ([`Inlets`]). The ring's bit in the receive completion queue's readiness
//! says where to look, so a poll costs nothing for senders that are quiet. What every sender must know of the
//! receiver (open or not, Q_Key, receives posted and taken) stands on one [`Board`] that only the receiver writes.
//!
//! A datagram is copied into the ring by the sender and out of it by the receiver, so neither touches the other's
//! memory and there is nothing to revoke. What cannot be delivered is dropped and counted; its sender has succeeded.
//! A receiver that is only slower than its sender loses nothing: the send queue stands still for it, as behind a link
//! that takes no more, as long as it takes datagrams or posts receives ([`UnendedSends`]), but not for ever: others wait
//! behind it. A sender that sleeps meanwhile asks to be told of that ([`Askers`]).

mod askers;
mod board;
mod core;
mod counters;
mod foreign;
mod grh;
mod inlet;
mod inlets;
mod outlet;
mod pending;
mod receives;
mod route;
mod routes;
mod seek;
mod sends;
mod unended;

pub(crate) use self::core::DatagramCore;
pub(crate) use foreign::Foreign;
pub(crate) use outlet::Message;
pub(crate) use route::Route;
pub(crate) use routes::Routes;

use askers::{Asker, Askers};
use board::{Board, BoardView};
use counters::Counters;
pub(crate) use counters::SendOutcome;
use grh::GRH_BYTES;
use inlet::{Inlet, Receiver};
use inlets::Inlets;
use outlet::Outlet;
use pending::Pending;
use receives::Receives;
use unended::{UnendedSend, UnendedSends};

/// Payload bytes of a datagram at most: the port's MTU.
pub(crate) const MAX_DATAGRAM_BYTES: usize = 4096;

/// Bytes of a record's payload at most: a datagram, and the route that may follow it.
const MAX_RECORD_BYTES: usize = MAX_DATAGRAM_BYTES + Route::BYTES;

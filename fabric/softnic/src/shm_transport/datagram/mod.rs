//! Datagram queue pairs (UD): every process that knows the number and the Q_Key of a queue pair may send to it.
//!
//! Invariant: every cache line has one writer. Each pair of a sender and a receiver therefore has a ring of its own.
//! The receiver's process creates the ring when the sender's first datagram requests it ([`BlockedDatagrams`]), and
//! revokes it when the sender exits or too many other senders want one ([`RxRingTable`]). The ring has a bit in the
//! readiness bitmap of the receive completion queue, so a poll costs nothing for idle senders. The receiver's status
//! that every sender needs (open or not, Q_Key, receives posted and consumed) is in one [`ReceiverStatus`] that only
//! the receiver writes.
//!
//! The sender copies a datagram into the ring and the receiver copies it out. Neither accesses the other's memory, so
//! there is nothing to revoke. A datagram that cannot be delivered is dropped and counted; its send request still
//! succeeds.
//!
//! A receiver that is merely slower than its sender loses no datagrams. Like a link under flow control, it blocks the
//! send queue as long as it consumes datagrams or posts receives ([`OutstandingSends`]). The time is bounded, because
//! datagrams to other destinations wait behind it. A sender that sleeps requests a notification of the receiver's
//! progress ([`BlockedSenders`]).

mod blocked_datagrams;
mod blocked_senders;
mod core;
mod counters;
mod grh;
mod outstanding_sends;
mod receiver_context;
mod receiver_status;
mod receives;
mod remote_datagram;
mod resolve;
mod route;
mod routes;
mod rx_ring;
mod rx_ring_table;
mod sends;
mod tx_ring;

pub(crate) use self::core::DatagramCore;
pub(crate) use remote_datagram::RemoteDatagram;
pub(crate) use route::Route;
pub(crate) use routes::Routes;
pub(crate) use tx_ring::Message;

use blocked_datagrams::BlockedDatagrams;
use blocked_senders::{BlockedSender, BlockedSenders};
use counters::Counters;
pub(crate) use counters::SendOutcome;
use grh::GRH_BYTES;
use outstanding_sends::{OutstandingSend, OutstandingSends};
use receiver_status::{ReceiverStatus, ReceiverStatusView};
use receives::Receives;
use rx_ring::{Receiver, RxRing};
use rx_ring_table::RxRingTable;
use tx_ring::TxRing;

/// Maximum payload of a datagram in bytes: the port's MTU.
pub(crate) const MAX_DATAGRAM_BYTES: usize = 4096;

/// Maximum payload of a record in bytes: a datagram, and the route that may follow it.
const MAX_RECORD_BYTES: usize = MAX_DATAGRAM_BYTES + Route::BYTES;

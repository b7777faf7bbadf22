//! The shared-memory way between processes of one host.
//!
//! The initiator executes a request itself, in memory that the target's process has granted ([`qp`]); datagrams have
//! a ring for each pair of sender and receiver ([`datagram`]). What a completion queue delivers it finds at its queue
//! pairs ([`cq`]). [`Host`] is what a process has once for all of it, and what its peers ask ([`answer`]).

mod answer;
pub(crate) mod cq;
mod cq_slot;
pub(crate) mod datagram;
pub(crate) mod events;
pub(crate) mod flight;
mod granted;
mod owner_access;
mod places;
mod process;
pub(crate) mod qp;
pub(crate) mod segments;
pub(crate) mod srq;
pub(crate) mod state;
mod stopped;

pub(crate) use cq_slot::{CqSlot, Parts};
pub(crate) use places::{Kind, Place};
pub(crate) use process::{Abroad, Host};

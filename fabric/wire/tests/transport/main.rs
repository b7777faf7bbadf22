//! The transport between two ends in virtual time: what it does over a link that loses, doubles and delays packets,
//! over memory that answers late, and with a peer that sends nonsense.

mod congestion;
mod guesses;
mod harness;
mod hostile;
mod memory;
mod reliable;
mod unreliable;

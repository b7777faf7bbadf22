//! The transport between two ends in virtual time: over a link that loses, duplicates and delays packets, with memory
//! that completes accesses late, and with a hostile peer.

mod congestion;
mod guesses;
mod harness;
mod hostile;
mod memory;
mod reliable;
mod unreliable;

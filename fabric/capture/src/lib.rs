//! Captures: what a program sends and receives through the software RNIC, as pcapng that Wireshark reads.
//!
//! Packets of RoCEv2 are recorded as they are sent and received. Requests between processes of one host go through
//! shared memory, and are no packets: each is recorded as the packets that RoCEv2 would carry it in, by the process
//! that posts it ([`Conversation`]). The interface that these are recorded under says so.
//!
//! `FARCALL_CAPTURE` names a folder. Each process of a run that opens the device writes a file of its own there
//! ([`Recorder`]), whole blocks by one system call, so that what a process did before it was killed is there.
//! [`merge`] makes one file of them.
//!
//! | file | what it holds |
//! |---|---|
//! | `pcapng` | the blocks of the format, written and read |
//! | `frame` | Ethernet, IP and UDP headers around a packet |
//! | `recorder` | the file of a process |
//! | `conversation` | the packets of a queue pair that goes through shared memory |
//! | `merge` | one file of those of all processes |

#![forbid(unsafe_code)]

mod conversation;
mod frame;
mod merge;
mod pcapng;
mod recorder;

pub use conversation::{Conversation, End, Ends, Gather, Request};
#[doc(hidden)]
pub use merge::merge_opened;
pub use merge::{Merged, PARTS_MAX, merge};
pub use recorder::{Batch, Direction, Recorder, SNAPLEN_BYTES, SNAPLEN_VARIABLE, VARIABLE, Way};

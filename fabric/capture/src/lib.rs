//! Captures: the packets that a program sends and receives through the software RNIC, as pcapng for Wireshark.
//!
//! RoCEv2 packets are recorded as they are sent and received. Requests between processes of one host use shared memory
//! and are no packets. The process that posts such a request records it as the packets that RoCEv2 would use
//! ([`Conversation`]). They have an interface of their own, whose description states this.
//!
//! `FARCALL_CAPTURE` names a directory. Each process that opens the device writes a file of its own there
//! ([`Recorder`]), complete blocks by one system call, so that the file contains everything that a process did before
//! it was killed. [`merge`] combines the files into one.
//!
//! | file | contents |
//! |---|---|
//! | `pcapng` | writing and reading the blocks of the format |
//! | `frame` | Ethernet, IP and UDP headers around a packet |
//! | `recorder` | the capture file of a process |
//! | `conversation` | synthesised packets of a queue pair that uses shared memory |
//! | `merge` | combination of the files of all processes |

#![forbid(unsafe_code)]

mod conversation;
mod frame;
mod merge;
mod pcapng;
mod recorder;

pub use conversation::{Conversation, Ends, Gather, QpEnd, Request};
#[doc(hidden)]
pub use merge::merge_opened;
pub use merge::{Merged, PARTS_MAX, merge};
pub use recorder::{Batch, CaptureSource, Direction, Recorder, SNAPLEN_BYTES, SNAPLEN_VARIABLE, VARIABLE};

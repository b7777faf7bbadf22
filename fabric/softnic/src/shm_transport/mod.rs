//! The shared-memory transport between processes of one host.
//!
//! The initiator executes a request itself, in memory that the target's process has granted ([`qp`]); each pair of a
//! sender and a receiver of datagrams has its own ring ([`datagram`]). A completion queue collects completions from its
//! queue pairs ([`cq`]). [`ShmTransport`] is the state that a process has once; [`peer_requests`] handles the requests
//! of peers.
//!
//! # A SEND over RC
//!
//! The initiator does the work in `post_send`. The target may be asleep.
//!
//! 1. `post_send` checks the work request against the queue's sizes and the local keys.
//! 2. The target *advertised* its receives when it posted them: a count and the scatter elements. They are in the
//!    queue pair's *inbound segment*, a part of a sealed memfd that many pairs share; the initiator mapped it when the
//!    pair was connected. If no receive is posted, the request waits in order (receiver not ready). Later posts and
//!    polls continue it until the RNR timeout has expired. The target notifies the initiator of new receives only while
//!    the initiator's application thread sleeps (`farcall_shm::credit_request`).
//! 3. The initiator publishes a *hazard*, which indicates that it accesses this target, and checks again that the
//!    target accepts requests.
//! 4. A payload of at most 1 KiB goes into the ring of the inbound segment: short slots, several to a cache line, one
//!    producer, one consumer. A longer one is copied directly to where the advertised receive points, if its memory is
//!    mapped.
//! 5. One store publishes the record: the first word of its first slot, a tag that depends on its position. The
//!    producer has cleared the first word after the record before. A producer that exits before this store has
//!    published nothing. There is no reservation that could stay open, and no lock.
//! 6. The initiator clears the hazard. At the end of the batch it *announces* the pair to the target's completion
//!    queue: it sets a bit in the queue's readiness bitmap, and writes the event descriptor if the application thread
//!    sleeps. Only one producer gets the duty to wake that thread.
//! 7. The target's `poll_cq` visits the pairs whose bits are set. It reads the record once, checks it, matches it with
//!    its oldest receive, copies the payload out of the ring and writes the completion into the caller's array. A
//!    completion queue stores nothing, so it cannot overrun.
//! 8. The target publishes how far it has consumed, and wakes the producer only if the producer requested that.
//!
//! WRITE and READ are steps 1 and 3 and a copy: the initiator maps the target's registered memory, also a sealed memfd,
//! when it first uses a key. Each time it checks the key's generation, bounds and permission under the hazard.
//!
//! # Shared receive queues
//!
//! Only the process of the queue consumes shared receives: a receive that another queue pair may take first cannot be
//! advertised. So the initiator puts small messages into the ring without a receive, several in flight, and requests a
//! receive for a large one by a record. Both wait until the target has matched them with receives, in order
//! (`qp/shared_target.rs`, `qp/shared_receive.rs`). A message does not wake an application thread that sleeps. It wakes
//! the service thread of the target's process, which matches; a completion then raises the event. The target accepts a
//! message by one compare-and-swap of a count in the inbound segment. An initiator that times out withdraws the rest by
//! the same word. So a message is both received and sent, or neither, even if one of the processes exits in between.
//!
//! # UC and UD
//!
//! UC takes the same path without waiting: a request that RC would delay or fail is dropped (`qp/unreliable.rs`). The
//! first datagram of a sender is stored while its service thread requests a ring from the receiver's process. The
//! receiver creates a ring, attaches it to the receive completion queue, and revokes it when the sender exits or too
//! many other senders want one. `post_send` never waits; the send queue waits for a receiver that has no free receive
//! but accepts datagrams, and a sender that sleeps requests a notification from that process
//! (`datagram/blocked_senders.rs`). A datagram is copied into the ring and out of it again, so there is nothing to
//! revoke.
//!
//! # Memory that the program had before
//!
//! Memory that a program registers (`reg_mr`: heap, stacks, files) has no memfd. The process that registers it passes a
//! descriptor of its own `/proc/self/mem` to processes of its user only. The initiator copies by `pread` and `pwrite`
//! under the hazard. Where that is not possible, and for atomics, the initiator requests the access from the target's
//! service thread, which executes one bounded access at a time. A page that is not mapped makes a call fail on both
//! paths; it never raises a signal. A device can be configured to move such memory to a memfd in place, where that is
//! sound (the drop-in libibverbs does); then peers map it (`process/shared_remap/`, docs/REGISTERED_MEMORY.md).
//!
//! # Orderings, and taking memory back
//!
//! Every cache line has one writer. Where two flags cross (readiness and sleep; hazard and revocation), each side
//! stores before it loads. The frequent side executes only a compiler fence, because the rare side issues
//! `membarrier`, which fences every processor of every process that uses the software RNIC. Processes that may not
//! call it use full fences on both sides, and refuse to connect with a peer that does not.
//!
//! `dereg_mr`, an error and `destroy_qp` first revoke (they increment the region's generation, or close the pair),
//! then issue the process-wide barrier, then wait until no hazard covers what was revoked. They do not wait for a peer
//! that is stopped inside an access: its mapping of the sealed memory is set aside and never reused.

mod context;
mod core;
pub(crate) mod cq;
mod cq_slot;
pub(crate) mod datagram;
pub(crate) mod events;
pub(crate) mod flight;
mod granted;
mod object_counts;
mod peer_requests;
mod proxied_access;
pub(crate) mod qp;
pub(crate) mod segments;
pub(crate) mod srq;
pub(crate) mod state;
mod suspended_access;

pub(crate) use context::{RemoteTransport, ShmTransport};
pub(crate) use cq_slot::{CqSlot, QpResources};
pub(crate) use object_counts::{ObjectKind, ObjectReservation};

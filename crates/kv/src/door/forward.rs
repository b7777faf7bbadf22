//! Commands for another thread's partition: carried to the owner in batches, answered in batches.
//!
//! Each server thread holds a port. What the connections of one thread ask of another during one turn travels as
//! one batch through a bounded channel, with one wake-up; the owner executes it on its partition and sends the same
//! batch back with the replies. Batches are reused, and a thread never has more than [`BATCHES_MAX`] of them at one
//! owner, so that the channels cannot overflow: when all are under way, the connections concerned wait.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use mio::Waker;

use super::listener::Stream;
use super::replies::encode_stats;
use crate::memcached::{Exptime, Retrieval, execute, execute_get, parse};
use crate::store::Partition;

/// Batches one thread may have at one owner.
pub const BATCHES_MAX: usize = 4;

/// Commands in one batch.
const BATCH_OPS_MAX: usize = 64;

/// A batch takes no further command once it has this many bytes.
const BATCH_SOFT_MAX_BYTES: usize = 256 << 10;

/// Reply buffers above this size are given back to the system.
const REPLIES_KEEP_BYTES: usize = 1 << 20;

/// Connections under way from the accepting thread to another one.
const ARRIVALS_MAX: usize = 256;

const SHUT_DOWN: &[u8] = b"SERVER_ERROR the owner of this key has shut down\r\n";

/// One thread's end of the exchange.
pub(super) struct Port {
    here: u32,
    peers: Vec<Peer>,
    inbox: Receiver<Mail>,
    arrivals: Receiver<Stream>,
}

/// The way to one other thread (or to itself, unused).
struct Peer {
    mail: SyncSender<Mail>,
    arrivals: SyncSender<Stream>,
    waker: Arc<Waker>,
    open: Batch,
    spare: Vec<Batch>,
}

enum Mail {
    Request(Batch),
    Reply(Batch),
}

/// Commands of one thread for another one's partition.
#[derive(Default)]
pub(super) struct Batch {
    from: u32,
    to: u32,
    ops: Vec<ForwardedOp>,
    bytes: Vec<u8>,
    replies: Vec<u8>,
}

struct ForwardedOp {
    to: Return,
    what: What,
    key: Range<usize>,
    data: Range<usize>,
    reply: Range<usize>,
}

/// Where a reply belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Return {
    pub(super) connection: usize,
    /// Distinguishes the connection from a later one in the same place.
    pub(super) connection_id: u64,
    pub(super) part: u64,
}

/// What is asked of an owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Get(Retrieval),
    /// The key field holds the whole command line.
    Line,
    FlushAll(Exptime),
    Stats,
}

/// The ports of `wakers.len()` threads that exchange commands.
pub(super) fn ports(wakers: &[Arc<Waker>]) -> Vec<Port> {
    let threads = wakers.len();
    // Room for every batch that can be under way: others' requests and own replies.
    let (mails, inboxes): (Vec<_>, Vec<_>) =
        wakers.iter().map(|_| sync_channel(2 * BATCHES_MAX * threads)).unzip();
    let (arrivals_in, arrivals_out): (Vec<_>, Vec<_>) =
        wakers.iter().map(|_| sync_channel(ARRIVALS_MAX)).unzip();
    let new_port = |(here, (inbox, arrivals)): (usize, (Receiver<Mail>, Receiver<Stream>))| {
        let peer = |(there, waker): (usize, &Arc<Waker>)| Peer {
            mail: mails[there].clone(),
            arrivals: arrivals_in[there].clone(),
            waker: waker.clone(),
            open: Batch::between(here, there),
            spare: (1..BATCHES_MAX).map(|_| Batch::between(here, there)).collect(),
        };
        Port { here: here as u32, peers: wakers.iter().enumerate().map(peer).collect(), inbox, arrivals }
    };
    inboxes.into_iter().zip(arrivals_out).enumerate().map(new_port).collect()
}

impl Batch {
    fn between(here: usize, there: usize) -> Self {
        Batch { from: here as u32, to: there as u32, ..Batch::default() }
    }

    fn is_full(&self) -> bool {
        self.ops.len() >= BATCH_OPS_MAX || self.bytes.len() >= BATCH_SOFT_MAX_BYTES
    }

    fn push(&mut self, to: Return, what: What, key: &[u8], data: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(data);
        self.ops.push(ForwardedOp {
            to,
            what,
            key: start..middle,
            data: middle..self.bytes.len(),
            reply: 0..0,
        });
    }

    /// Executes every command on the owner's partition.
    fn execute(&mut self, partition: &mut Partition, now_ms: u64) {
        for op in &mut self.ops {
            let start = self.replies.len();
            let (key, data) = (&self.bytes[op.key.clone()], &self.bytes[op.data.clone()]);
            match op.what {
                What::Get(retrieval) => {
                    if let Ok(key) = partition.key(key) {
                        execute_get(&key, retrieval, partition, now_ms, &mut self.replies);
                    }
                }
                What::Line => execute_line(key, data, partition, now_ms, &mut self.replies),
                What::FlushAll(delay) => partition.flush_all(delay.to_flush_ms(now_ms), now_ms),
                What::Stats => encode_stats(&partition.stats(), &mut self.replies),
            }
            op.reply = start..self.replies.len();
        }
    }

    fn refuse(&mut self) {
        self.replies.extend_from_slice(SHUT_DOWN);
        self.ops.iter_mut().for_each(|op| op.reply = 0..SHUT_DOWN.len());
    }

    fn clear(&mut self) {
        self.ops.clear();
        self.bytes.clear();
        self.replies.clear();
        for buffer in [&mut self.bytes, &mut self.replies] {
            buffer.shrink_to(REPLIES_KEEP_BYTES);
        }
    }
}

fn execute_line(line: &[u8], data: &[u8], partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    // The sender has parsed the same line before.
    let Ok(command) = parse(line) else { return };
    if let Some(Ok(key)) = command.key().map(|bytes| partition.key(bytes)) {
        execute(&key, &command, data, partition, now_ms, out);
    }
}

impl Port {
    /// How many other threads there are.
    pub(super) fn others(&self) -> u32 {
        self.peers.len() as u32 - 1
    }

    /// Whether a command for thread `owner` can be taken now.
    pub(super) fn has_room(&self, owner: u32) -> bool {
        let peer = &self.peers[owner as usize];
        !peer.open.is_full() || !peer.spare.is_empty()
    }

    /// Whether a command for all other threads can be taken now.
    pub(super) fn has_room_everywhere(&self) -> bool {
        (0..self.peers.len() as u32).all(|owner| owner == self.here || self.has_room(owner))
    }

    /// Adds a command for `owner`, who must have room. It leaves with [`Port::send_all`].
    pub(super) fn push(&mut self, owner: u32, to: Return, what: What, key: &[u8], data: &[u8]) {
        if self.peers[owner as usize].open.is_full() {
            self.send(owner as usize);
        }
        self.peers[owner as usize].open.push(to, what, key, data);
    }

    /// Adds a command without key for every other thread, all of whom must have room.
    pub(super) fn push_everywhere(&mut self, to: Return, what: What) {
        let here = self.here;
        for owner in (0..self.peers.len() as u32).filter(|&owner| owner != here) {
            self.push(owner, to, what, &[], &[]);
        }
    }

    /// Sends every batch with commands as far as the bound allows.
    pub(super) fn send_all(&mut self) {
        for owner in 0..self.peers.len() {
            if !self.peers[owner].open.ops.is_empty() && !self.peers[owner].spare.is_empty() {
                self.send(owner);
            }
        }
    }

    fn send(&mut self, owner: usize) {
        let peer = &mut self.peers[owner];
        let next = peer.spare.pop().expect("callers check that a batch is spare");
        let batch = std::mem::replace(&mut peer.open, next);
        match peer.mail.try_send(Mail::Request(batch)) {
            // A failed wake-up means that the owner's door is gone; its mailbox says so next time.
            Ok(()) => drop(peer.waker.wake()),
            Err(TrySendError::Disconnected(Mail::Request(mut batch) | Mail::Reply(mut batch))) => {
                batch.refuse();
                // Answered as if the owner had: the own mailbox has room for every own batch.
                let here = &self.peers[self.here as usize];
                let _ = here.mail.try_send(Mail::Reply(batch));
                drop(here.waker.wake());
            }
            Err(TrySendError::Full(_)) => unreachable!("the mailbox has room for every batch there is"),
        }
    }

    /// Executes what others ask and hands every reply that came back to `deliver`. Returns whether there was any.
    pub(super) fn exchange(
        &mut self,
        partition: &mut Partition,
        now_ms: u64,
        mut deliver: impl FnMut(Return, &[u8]),
    ) -> bool {
        let mut any = false;
        while let Ok(mail) = self.inbox.try_recv() {
            any = true;
            match mail {
                Mail::Request(mut batch) => {
                    batch.execute(partition, now_ms);
                    let peer = &self.peers[batch.from as usize];
                    // A sender that is gone needs no reply.
                    if peer.mail.try_send(Mail::Reply(batch)).is_ok() {
                        drop(peer.waker.wake());
                    }
                }
                Mail::Reply(mut batch) => {
                    for op in &batch.ops {
                        deliver(op.to, &batch.replies[op.reply.clone()]);
                    }
                    batch.clear();
                    self.peers[batch.to as usize].spare.push(batch);
                }
            }
        }
        any
    }

    /// Hands a connection to another thread; gives it back when that thread has too many waiting.
    pub(super) fn hand_over(&self, to: u32, stream: Stream) -> Result<(), Stream> {
        let peer = &self.peers[to as usize];
        match peer.arrivals.try_send(stream) {
            Ok(()) => {
                drop(peer.waker.wake());
                Ok(())
            }
            Err(TrySendError::Full(stream) | TrySendError::Disconnected(stream)) => Err(stream),
        }
    }

    /// The next connection that the accepting thread dealt to this one.
    pub(super) fn arrival(&self) -> Option<Stream> {
        self.arrivals.try_recv().ok()
    }
}

//! Commands for another thread's partition: sent to the owner in batches, and returned in batches with the replies.
//!
//! Each server thread has a [`PartitionExchange`]. The commands that one thread forwards to another during a turn are
//! sent as one batch through a bounded channel, with one wake-up. The owner executes the batch on its partition and
//! returns it with the replies. Batches are reused, and a thread never has more than [`BATCHES_MAX`] of them at one
//! owner, so that the channels cannot overflow. When all are in use, the connections concerned wait.
//!
//! A batch whose replies become long is returned before all of it has been executed. Its sender delivers the replies
//! and sends it again for the remaining commands. Until then the owner defers later batches of that sender, which
//! preserves the order and bounds the replies in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use mio::Waker;
use mio::net::TcpStream;

use crate::memcached::{Change, Retrieval, execute, execute_dump, execute_get, parse};
use crate::store::Partition;
use crate::wire::encode_stats;

/// Maximum number of batches of one thread at one owner.
pub const BATCHES_MAX: usize = 4;

/// Maximum number of commands in one batch.
const BATCH_OPS_MAX: usize = 64;

/// Length of a batch in bytes at which it accepts no further command.
const BATCH_SOFT_MAX_BYTES: usize = 256 << 10;

/// Buffers of a batch above this capacity are released when it is empty.
const BATCH_KEEP_BYTES: usize = 64 << 10;

/// Length of the replies of a batch in bytes at which it is returned before more of it is executed.
const REPLIES_SOFT_MAX_BYTES: usize = 256 << 10;

/// Maximum number of connections assigned to a thread that it has not accepted yet.
const CONNECTIONS_WAITING_MAX: usize = 256;

const SHUT_DOWN: &[u8] = b"SERVER_ERROR the owner of this key has shut down\r\n";

/// The part of the exchange that belongs to one thread.
pub(super) struct PartitionExchange {
    /// Number of this thread.
    here: u32,
    channels: Vec<PartitionChannel>,
    received: Receiver<Message>,
    /// For each thread, the later batches that it sent while one of its batches is executed in part.
    deferred_batches: Vec<Option<VecDeque<Batch>>>,
    connections: Receiver<TcpStream>,
}

/// The channel to one thread. The channel to the thread itself is used only for refusals.
struct PartitionChannel {
    messages: SyncSender<Message>,
    connections: SyncSender<TcpStream>,
    waker: Arc<Waker>,
    open: Batch,
    spare: Vec<Batch>,
}

enum Message {
    Request(Batch),
    Reply(Batch),
}

/// Commands of one thread for the partition of another.
#[derive(Default)]
pub(super) struct Batch {
    from: u32,
    to: u32,
    ops: Vec<ForwardedOp>,
    bytes: Vec<u8>,
    replies: Vec<u8>,
    /// Number of operations executed, starting with the first.
    executed: usize,
    /// `true` if it was returned at least once before all operations were executed.
    is_rest: bool,
}

struct ForwardedOp {
    to: ReplyTo,
    action: Action,
    key: Range<usize>,
    data: Range<usize>,
    reply: Range<usize>,
}

/// Destination of a reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyTo {
    pub(super) connection: usize,
    /// Distinguishes the connection from a later one in the same slot.
    pub(super) connection_id: u64,
    pub(super) part: u64,
}

/// Action requested from the owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    Get(Retrieval),
    /// The key field holds the complete command line.
    Line,
    Change(Change),
    Stats,
    Prefixes,
    Dump(u32),
}

/// Creates the exchanges of `wakers.len()` threads.
pub(super) fn exchanges(wakers: &[Arc<Waker>]) -> Vec<PartitionExchange> {
    let threads = wakers.len();
    // Capacity for every batch that can be in flight: requests of other threads and replies to this one.
    let (senders, receivers): (Vec<_>, Vec<_>) =
        wakers.iter().map(|_| sync_channel(2 * BATCHES_MAX * threads)).unzip();
    let (connection_senders, connection_receivers): (Vec<_>, Vec<_>) =
        wakers.iter().map(|_| sync_channel(CONNECTIONS_WAITING_MAX)).unzip();
    let new_exchange =
        |(here, (received, connections)): (usize, (Receiver<Message>, Receiver<TcpStream>))| {
            let channel = |(there, waker): (usize, &Arc<Waker>)| PartitionChannel {
                messages: senders[there].clone(),
                connections: connection_senders[there].clone(),
                waker: waker.clone(),
                open: Batch::between(here, there),
                spare: (1..BATCHES_MAX).map(|_| Batch::between(here, there)).collect(),
            };
            PartitionExchange {
                here: here as u32,
                channels: wakers.iter().enumerate().map(channel).collect(),
                received,
                deferred_batches: wakers.iter().map(|_| None).collect(),
                connections,
            }
        };
    receivers.into_iter().zip(connection_receivers).enumerate().map(new_exchange).collect()
}

impl Batch {
    fn between(here: usize, there: usize) -> Self {
        Batch { from: here as u32, to: there as u32, ..Batch::default() }
    }

    fn is_full(&self) -> bool {
        self.ops.len() >= BATCH_OPS_MAX || self.bytes.len() >= BATCH_SOFT_MAX_BYTES
    }

    fn push(&mut self, to: ReplyTo, action: Action, key: &[u8], data: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(data);
        self.ops.push(ForwardedOp {
            to,
            action,
            key: start..middle,
            data: middle..self.bytes.len(),
            reply: 0..0,
        });
    }

    /// Executes commands on the owner's partition, until all are executed or the replies reach their limit. Returns
    /// whether all are executed.
    fn execute(&mut self, partition: &mut Partition, now_ms: u64) -> bool {
        for op in &mut self.ops {
            let start = self.replies.len();
            if start >= REPLIES_SOFT_MAX_BYTES {
                self.is_rest = true;
                return false;
            }
            let (key, data) = (&self.bytes[op.key.clone()], &self.bytes[op.data.clone()]);
            match op.action {
                Action::Get(retrieval) => {
                    if let Ok(key) = partition.key(key) {
                        execute_get(&key, retrieval, partition, now_ms, &mut self.replies);
                    }
                }
                Action::Line => execute_line(key, data, partition, now_ms, &mut self.replies),
                Action::Change(change) => change.apply(partition, now_ms),
                Action::Dump(part) => execute_dump(part, partition, now_ms, &mut self.replies),
                Action::Prefixes => partition.prefixes.encode(&mut self.replies),
                Action::Stats => encode_stats(&partition.stats(), &mut self.replies),
            }
            op.reply = start..self.replies.len();
            self.executed += 1;
        }
        true
    }

    /// Delivers the replies. Returns whether the batch is complete.
    fn deliver(&mut self, mut deliver: impl FnMut(ReplyTo, &[u8])) -> bool {
        for op in self.ops.drain(..self.executed) {
            deliver(op.to, &self.replies[op.reply]);
        }
        self.executed = 0;
        self.replies.clear();
        self.ops.is_empty()
    }

    fn refuse(&mut self) {
        self.replies.extend_from_slice(SHUT_DOWN);
        self.ops.iter_mut().for_each(|op| op.reply = 0..SHUT_DOWN.len());
        self.executed = self.ops.len();
    }

    fn clear(&mut self) {
        self.ops.clear();
        self.bytes.clear();
        self.replies.clear();
        (self.executed, self.is_rest) = (0, false);
        for buffer in [&mut self.bytes, &mut self.replies] {
            buffer.shrink_to(BATCH_KEEP_BYTES);
        }
    }
}

fn execute_line(line: &[u8], data: &[u8], partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) {
    // The sender has already parsed this line.
    let Ok(command) = parse(line) else { return };
    if let Some(Ok(key)) = command.key().map(|bytes| partition.key(bytes)) {
        execute(&key, &command, data, partition, now_ms, out);
    }
}

impl PartitionExchange {
    /// Returns the number of other threads.
    pub(super) fn others(&self) -> u32 {
        self.channels.len() as u32 - 1
    }

    /// Returns whether a command for thread `owner` can be accepted now.
    pub(super) fn has_room(&self, owner: u32) -> bool {
        let channel = &self.channels[owner as usize];
        !channel.open.is_full() || !channel.spare.is_empty()
    }

    /// Returns whether a command for all other threads can be accepted now.
    pub(super) fn has_room_everywhere(&self) -> bool {
        (0..self.channels.len() as u32).all(|owner| owner == self.here || self.has_room(owner))
    }

    /// Adds a command for `owner`, which must have room. [`PartitionExchange::send_all`] sends it.
    pub(super) fn push(&mut self, owner: u32, to: ReplyTo, action: Action, key: &[u8], data: &[u8]) {
        if self.channels[owner as usize].open.is_full() {
            self.send(owner as usize);
        }
        self.channels[owner as usize].open.push(to, action, key, data);
    }

    /// Adds a command without key for every other thread, all of which must have room.
    pub(super) fn push_everywhere(&mut self, to: ReplyTo, action: Action) {
        let here = self.here;
        for owner in (0..self.channels.len() as u32).filter(|&owner| owner != here) {
            self.push(owner, to, action, &[], &[]);
        }
    }

    /// Sends every batch that has commands, as far as the limit allows.
    pub(super) fn send_all(&mut self) {
        for owner in 0..self.channels.len() {
            if !self.channels[owner].open.ops.is_empty() && !self.channels[owner].spare.is_empty() {
                self.send(owner);
            }
        }
    }

    fn send(&mut self, owner: usize) {
        let channel = &mut self.channels[owner];
        let next = channel.spare.pop().expect("callers check that a batch is spare");
        let batch = std::mem::replace(&mut channel.open, next);
        self.request(owner, batch);
    }

    fn request(&self, owner: usize, batch: Batch) {
        let channel = &self.channels[owner];
        match channel.messages.try_send(Message::Request(batch)) {
            // A wake-up fails if the owner's front end has been dropped; the next send then reports a disconnected
            // channel.
            Ok(()) => drop(channel.waker.wake()),
            Err(TrySendError::Disconnected(Message::Request(mut batch) | Message::Reply(mut batch))) => {
                batch.refuse();
                // The refusal takes the place of the owner's reply: this thread's channel has capacity for all its own
                // batches.
                let here = &self.channels[self.here as usize];
                let _ = here.messages.try_send(Message::Reply(batch));
                drop(here.waker.wake());
            }
            Err(TrySendError::Full(_)) => unreachable!("the channel has room for every batch there is"),
        }
    }

    /// Executes commands of other threads and passes every returned reply to `deliver`. Returns whether there was any
    /// message.
    pub(super) fn receive(
        &mut self,
        partition: &mut Partition,
        now_ms: u64,
        mut deliver: impl FnMut(ReplyTo, &[u8]),
    ) -> bool {
        let mut any = false;
        while let Ok(messages) = self.received.try_recv() {
            any = true;
            match messages {
                Message::Request(batch) => self.serve(batch, partition, now_ms),
                Message::Reply(mut batch) => {
                    if batch.deliver(&mut deliver) {
                        batch.clear();
                        self.channels[batch.to as usize].spare.push(batch);
                    } else {
                        self.request(batch.to as usize, batch);
                    }
                }
            }
        }
        any
    }

    /// Executes a batch and the later batches of its sender, or defers it while an earlier one is incomplete.
    fn serve(&mut self, batch: Batch, partition: &mut Partition, now_ms: u64) {
        let from = batch.from as usize;
        let mut deferred_batches = match self.deferred_batches[from].take() {
            Some(mut deferred_batches) if !batch.is_rest => {
                deferred_batches.push_back(batch);
                self.deferred_batches[from] = Some(deferred_batches);
                return;
            }
            deferred_batches => deferred_batches.unwrap_or_default(),
        };
        let mut next = Some(batch);
        while let Some(mut batch) = next {
            let is_whole = batch.execute(partition, now_ms);
            let channel = &self.channels[from];
            // A sender that has been dropped needs no reply.
            if channel.messages.try_send(Message::Reply(batch)).is_ok() {
                drop(channel.waker.wake());
            }
            if !is_whole {
                self.deferred_batches[from] = Some(deferred_batches);
                return;
            }
            next = deferred_batches.pop_front();
        }
    }

    /// Passes a connection to another thread. Returns it if that thread has too many waiting.
    pub(super) fn pass_connection(&self, to: u32, stream: TcpStream) -> Result<(), TcpStream> {
        let channel = &self.channels[to as usize];
        match channel.connections.try_send(stream) {
            Ok(()) => {
                drop(channel.waker.wake());
                Ok(())
            }
            Err(TrySendError::Full(stream) | TrySendError::Disconnected(stream)) => Err(stream),
        }
    }

    /// Returns the next connection that the accepting thread passed to this one.
    pub(super) fn next_connection(&self) -> Option<TcpStream> {
        self.connections.try_recv().ok()
    }
}

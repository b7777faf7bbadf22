//! Reads and writes of single pages of replicas.

use bytes::Bytes;
use farcall_io::{Buffer, Config, Direction, Request, TransferCompletion, TransferFailure};
use farcall_verbs::Nanos;

use super::metadata::CHUNKS_MAX;
use super::operation::Operation;
use super::redo::REDO_WRITES_MAX;
use super::replay::REPLAYS_MAX;
use super::{BACKGROUND_MAX, Engine, Tag};
use crate::client::PAGE_BYTES;
use crate::client::config::ClientConfig;
use crate::client::extent::ReplicaLocation;

/// Maximum number of work requests in flight on one queue pair.
pub(super) const SEND_DEPTH: u32 = 128;

/// Returns the configuration of a session with one node, with capacity for every page in progress.
pub(super) fn session_config(config: &ClientConfig) -> Config {
    Config {
        connections: config.connections,
        pool_bytes: config.pool_bytes,
        work_max_bytes: (config.pool_bytes / 4).clamp(PAGE_BYTES, 1 << 20),
        // Pages are copied through the pool: no memory is registered per request.
        register_from_bytes: config.pool_bytes / 64 * 64,
        outstanding: config.pages_max + REDO_WRITES_MAX + BACKGROUND_MAX + REPLAYS_MAX + 2 * CHUNKS_MAX,
        send_depth: SEND_DEPTH,
        ..Config::default()
    }
}

/// Returns the direction of a transfer: owned buffers are read into, shared ones are written.
fn direction_of(buffer: &Buffer) -> Direction {
    match buffer {
        Buffer::Owned(_) => Direction::Read,
        Buffer::Shared(_) | Buffer::Registered(_) => Direction::Write,
    }
}

impl Engine {
    pub(super) fn read_page(&mut self, id: u32, operation: &mut Operation, replica: u32, now: Nanos) {
        self.transfer(id, operation, replica, vec![0; PAGE_BYTES].into(), now);
    }

    pub(super) fn write_page(&mut self, id: u32, operation: &mut Operation, replica: u32, now: Nanos) {
        let bytes = Self::bytes_to_store(operation);
        self.transfer(id, operation, replica, bytes.into(), now);
    }

    /// Starts an I/O request. If it cannot be started, its failure is handled in the next step.
    fn transfer(&mut self, id: u32, operation: &mut Operation, replica: u32, buffer: Buffer, now: Nanos) {
        let (extent, at) = self.locate(Self::page_of(operation));
        let Some(location) = self.extents[extent].replica(replica).map(|replica| replica.location) else {
            return;
        };
        let offset = (at * PAGE_BYTES) as u64;
        match location {
            ReplicaLocation::Node { node, grant: Some(grant), .. } => {
                let tag = self.tag(id, operation, replica);
                let direction = direction_of(&buffer);
                let request = Request { direction, grant, offset, buffer, context: Tag::Page(tag) };
                let session = self.nodes[node].session();
                let error = match session.map(|session| session.submit(request)) {
                    Some(Ok(())) => return,
                    Some(Err(error)) => error.why.to_string(),
                    None => "there is no session".to_owned(),
                };
                self.finished_io.push((tag, Err(())));
                self.end_session(node, error, now);
            }
            ReplicaLocation::File { slot } => {
                let context = self.tag(id, operation, replica);
                let offset = slot * self.config.slab_bytes + offset;
                let result = self.spill.as_ref().ok_or(()).and_then(|spill| match buffer {
                    Buffer::Owned(bytes) => spill.read(offset, bytes).map(Bytes::from),
                    Buffer::Shared(bytes) => spill.write(offset, &bytes).map(|()| Bytes::new()),
                    Buffer::Registered(_) => Err(()),
                });
                if result.is_err() {
                    self.spill_failed();
                }
                self.finished_io.push((context, result));
            }
            ReplicaLocation::Node { grant: None, .. } | ReplicaLocation::Away { .. } => {}
        }
    }

    /// Handles the completion of an I/O request.
    pub(super) fn on_io_completed(&mut self, completion: TransferCompletion<Tag>, now: Nanos) {
        let TransferCompletion { context, buffer, result } = completion;
        match context {
            Tag::Page(tag) => {
                let result = result.map_err(|failure| self.replica_failed(tag.replica, &failure, now));
                self.on_page_io(tag, result.map(|()| buffer.into_owned().unwrap_or_default().into()), now);
            }
            Tag::Run(tag) => {
                let result = result.map_err(|failure| self.replica_failed(tag.replica, &failure, now));
                self.on_run_io(tag, result.map(|()| buffer), now);
            }
            Tag::Metadata { write, node } => match result {
                Ok(()) => self.on_metadata_written(write, node, now),
                Err(failure) => self.session_failed(Some(node), failure.to_string(), now),
            },
            Tag::Chunk(node, tag) => match result {
                Ok(()) => self.chunk_transferred(tag, buffer.into_owned(), now),
                Err(failure) => {
                    self.session_failed(Some(node), failure.to_string(), now);
                    self.chunk_failed(tag, now);
                }
            },
        }
    }

    /// Handles a failed I/O request with a replica.
    fn replica_failed(&mut self, replica: u32, failure: &TransferFailure, now: Nanos) {
        let mut holders = self.extents.iter().filter_map(|extent| extent.replica(replica)?.node());
        let node = holders.next();
        self.session_failed(node, failure.to_string(), now);
    }

    /// Handles a failed I/O request, whose session has ended.
    fn session_failed(&mut self, node: Option<usize>, why: String, now: Nanos) {
        // The request may belong to an earlier session: close only a session that has ended.
        if let Some(node) = node
            && self.nodes[node].session().is_some_and(|session| session.ended().is_some())
        {
            self.end_session(node, why, now);
        }
    }
}

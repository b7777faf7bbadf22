//! Reads and writes of single pages of replicas.

use bytes::Bytes;
use farcall_io::{Buffer, Config, Direction, Request, TransferCompletion, TransferFailure};
use farcall_verbs::Nanos;

use super::metadata::PIECES_MAX;
use super::operation::Operation;
use super::{BACKGROUND_MAX, Engine, Tag};
use crate::client::PAGE_BYTES;
use crate::client::config::ClientConfig;
use crate::client::extent::Home;

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
        outstanding: config.pages_max + BACKGROUND_MAX + 2 * PIECES_MAX,
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
        let (extent, at) = self.place(Self::page_of(operation));
        let Some(home) = self.extents[extent].replica(replica).map(|replica| replica.home) else { return };
        let offset = (at * PAGE_BYTES) as u64;
        match home {
            Home::Node { donor, grant: Some(grant), .. } => {
                let tag = self.tag(id, operation, replica);
                let direction = direction_of(&buffer);
                let request = Request { direction, grant, offset, buffer, context: Tag::Page(tag) };
                let session = self.donors[donor].session();
                let refused = match session.map(|session| session.submit(request)) {
                    Some(Ok(())) => return,
                    Some(Err(refused)) => refused.why.to_string(),
                    None => "there is no session".to_owned(),
                };
                self.later.push((tag, Err(())));
                self.link_down(donor, refused, now);
            }
            Home::File { place } => {
                let context = self.tag(id, operation, replica);
                let offset = place * self.config.slab_bytes + offset;
                let result = self.spill.as_ref().ok_or(()).and_then(|spill| match buffer {
                    Buffer::Owned(bytes) => spill.read(offset, bytes).map(Bytes::from),
                    Buffer::Shared(bytes) => spill.write(offset, &bytes).map(|()| Bytes::new()),
                    Buffer::Registered(_) => Err(()),
                });
                if result.is_err() {
                    self.spill_failed();
                }
                self.later.push((context, result));
            }
            Home::Node { grant: None, .. } | Home::Away { .. } => {}
        }
    }

    /// Handles the completion of an I/O request.
    pub(super) fn io_ended(&mut self, done: TransferCompletion<Tag>, now: Nanos) {
        let TransferCompletion { context, buffer, result } = done;
        match context {
            Tag::Page(tag) => {
                let result = result.map_err(|failure| self.replica_failed(tag.replica, &failure, now));
                self.step_with(tag, result.map(|()| buffer.into_owned().unwrap_or_default().into()), now);
            }
            Tag::Run(tag) => {
                let result = result.map_err(|failure| self.replica_failed(tag.replica, &failure, now));
                self.run_landed(tag, result.map(|()| buffer), now);
            }
            Tag::Note { write, node } => match result {
                Ok(()) => self.noted(write, node, now),
                Err(failure) => self.session_failed(Some(node), failure.to_string(), now),
            },
            Tag::Copy(node, tag) => match result {
                Ok(()) => self.copied(tag, buffer.into_owned(), now),
                Err(failure) => {
                    self.session_failed(Some(node), failure.to_string(), now);
                    self.copy_failed(tag, now);
                }
            },
        }
    }

    /// Handles a failed I/O request with a replica.
    fn replica_failed(&mut self, replica: u32, failure: &TransferFailure, now: Nanos) {
        let mut donors = self.extents.iter().filter_map(|extent| extent.replica(replica)?.donor());
        let donor = donors.next();
        self.session_failed(donor, failure.to_string(), now);
    }

    /// Handles a failed I/O request, whose session has ended.
    fn session_failed(&mut self, donor: Option<usize>, why: String, now: Nanos) {
        // The request may belong to an earlier session: close only a session that has ended.
        if let Some(donor) = donor
            && self.donors[donor].session().is_some_and(|session| session.ended().is_some())
        {
            self.link_down(donor, why, now);
        }
    }
}

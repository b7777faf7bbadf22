//! What outlives a connection: the slots, how far execution came, and results that are still to be fetched.

use std::sync::Arc;

use farcall_link::bootstrap::SessionId;
use farcall_link::{Geometry, Nic, Region};
use farcall_verbs::{Access, Nanos, Result};

use super::buffered::Buffered;
use super::collect::DeferredCall;

use crate::wire::{CallBase, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, Seq, Slots, TailKey};

/// The state that makes calls at-most-once: a message below `expect` was executed, its response is in its slot until
/// the client, by reusing the slot, says that it has it.
pub(crate) struct Session {
    pub id: SessionId,
    pub secret: [u8; 16],
    /// Of the session, not of the connection: responses that wait in their slots stay readable over the next one.
    pub tail_key: TailKey,
    pub geometry: Geometry,
    pub requests: Slots,
    pub responses: Slots,
    pub mailbox: Arc<Region>,
    pub results: Arc<Region>,
    /// The next message to execute.
    pub expect: Seq,
    /// By the last request of full form.
    pub call_base: Option<CallBase>,
    pub assembly: Option<Assembly>,
    pub retained: Vec<Retained>,
    pub retained_bytes: usize,
    /// Whether the client collects answers that come later.
    pub can_defer: bool,
    pub deferred: Vec<DeferredCall>,
}

/// A request that comes in parts.
pub(crate) struct Assembly {
    pub call_id: u64,
    pub total_bytes: usize,
    /// What came of it; nothing if it was refused.
    pub bytes: Buffered,
    /// How far it came.
    pub came_bytes: usize,
    pub is_refused: bool,
    pub began: Nanos,
}

/// A result that is fetched in pieces.
pub(crate) struct Retained {
    pub call_id: u64,
    pub bytes: Buffered,
}

const LINE_BYTES: usize = 64;
const LINES_OF_PAGE: usize = 64;

impl Session {
    pub fn new(
        id: SessionId,
        secret: [u8; 16],
        tail_key: TailKey,
        geometry: Geometry,
        (mailbox, results): (Arc<Region>, Arc<Region>),
    ) -> Self {
        Self {
            id,
            secret,
            tail_key,
            geometry,
            requests: Slots::new(geometry.window, geometry.request_slot_bytes, REQUEST_HEADER_BYTES),
            responses: Slots::new(geometry.window, geometry.response_slot_bytes, RESPONSE_HEADER_BYTES),
            mailbox,
            results,
            expect: Seq::FIRST,
            call_base: None,
            assembly: None,
            retained: Vec::new(),
            retained_bytes: 0,
            can_defer: false,
            deferred: Vec::new(),
        }
    }

    /// Memory for a mailbox and for results: one registration, because each costs the server a descriptor. So a client
    /// may write to its results and read its mailbox, which tells it nothing and harms nobody else.
    ///
    /// Each connection's slots begin at another line of a page: a server looks at all mailboxes in turn, and the caches
    /// have few places for what lies at the same line of a thousand pages.
    pub fn regions(
        nic: &Nic,
        connection: u32,
        mailbox_bytes: usize,
        responses_bytes: usize,
    ) -> Result<(Arc<Region>, Arc<Region>)> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let lead_bytes = connection as usize % LINES_OF_PAGE * LINE_BYTES;
        let len_bytes = [mailbox_bytes, responses_bytes];
        let [mailbox, results] = Region::alloc_two(&*nic.pd, lead_bytes, len_bytes, access)?;
        Ok((Arc::new(mailbox), Arc::new(results)))
    }

    /// Memory of the slots.
    pub fn slots_bytes(&self) -> usize {
        self.mailbox.len_bytes() + self.results.len_bytes()
    }

    /// Keeps the rest of a result.
    pub fn retain(&mut self, call_id: u64, bytes: Buffered) {
        self.retained_bytes += bytes.len();
        self.retained.push(Retained { call_id, bytes });
    }

    /// The place of a kept result.
    pub fn find_retained(&self, call_id: u64) -> Option<usize> {
        self.retained.iter().position(|retained| retained.call_id == call_id)
    }

    /// Forgets a kept result.
    pub fn release(&mut self, at: usize) {
        let retained = self.retained.swap_remove(at);
        self.retained_bytes -= retained.bytes.len();
    }

    /// Makes sure that nothing the old connection left in the mailbox is taken for a message of the new one.
    pub fn forget_mailbox(&self) {
        self.mailbox.fill(0, self.mailbox.len_bytes(), 0);
    }
}

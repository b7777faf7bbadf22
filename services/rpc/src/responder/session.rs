//! State that outlives a connection: the slots, the number of the next message, and results that have not been
//! fetched.

use std::sync::Arc;

use farcall_link::bootstrap::SessionId;
use farcall_link::{Geometry, Nic, Region};
use farcall_verbs::{Access, Result};

use super::deferred_calls::SessionDeferredCalls;
use super::parts::{Reassembly, RetainedResults};
use crate::wire::{CallBase, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, Seq, Slots, TailKey};

/// The state that makes calls at-most-once. A message below `expect` has been executed. Its response is in its slot
/// until the client reuses the slot, which implies that it has received the response.
pub(crate) struct Session {
    pub id: SessionId,
    pub secret: [u8; 16],
    /// Belongs to the session, not the connection: responses in their slots stay readable over the next connection.
    pub tail_key: TailKey,
    pub geometry: Geometry,
    pub requests: Slots,
    pub responses: Slots,
    pub mailbox: Arc<Region>,
    pub results: Arc<Region>,
    /// The next message to execute.
    pub expect: Seq,
    /// Taken from the last request of full form.
    pub call_base: Option<CallBase>,
    pub incoming: Reassembly,
    pub retained: RetainedResults,
    pub deferred: SessionDeferredCalls,
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
            incoming: Reassembly::default(),
            retained: RetainedResults::default(),
            deferred: SessionDeferredCalls::default(),
        }
    }

    /// Allocates memory for a mailbox and for results in one registration, because each registration costs the server
    /// a descriptor. A client may therefore write to its results and read its mailbox, which discloses nothing and
    /// affects no other client.
    ///
    /// The slots of consecutive connections begin at different cache lines of a page. The server polls all mailboxes
    /// in turn, and a cache has few sets for the same line of a thousand pages.
    pub fn regions(
        nic: &Nic,
        connection: u32,
        mailbox_bytes: usize,
        responses_bytes: usize,
    ) -> Result<(Arc<Region>, Arc<Region>)> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let lead_bytes = connection as usize % LINES_OF_PAGE * LINE_BYTES;
        let len_bytes = [mailbox_bytes, responses_bytes];
        let [mailbox, results] = Region::alloc_two(&**nic.pd(), lead_bytes, len_bytes, access)?;
        Ok((Arc::new(mailbox), Arc::new(results)))
    }

    /// Returns the memory of the slots in bytes.
    pub fn slots_bytes(&self) -> usize {
        self.mailbox.len_bytes() + self.results.len_bytes()
    }

    /// Clears the mailbox, so that no message of the old connection is taken for one of the new connection.
    pub fn clear_mailbox(&self) {
        self.mailbox.fill(0, self.mailbox.len_bytes(), 0);
    }
}

//! Reading the bytes of an operation's page from a replica, checked by their checksum.

use bytes::Bytes;
use farcall_verbs::Nanos;

use super::{Operation, OperationKind, OperationState};
use crate::client::PAGE_BYTES;
use crate::client::config::IoError;
use crate::client::engine::Engine;
use crate::client::engine::redo::ZEROS;
use crate::client::extent::Replica;

/// Next step of a fetch.
enum Fetch {
    From(u32),
    /// The bytes are known as far as necessary.
    Known,
    /// A replica that may have them is unreachable.
    Wait,
    Lost,
}

impl Engine {
    pub(super) fn fetch(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        if !operation.in_flight.is_empty() {
            return None;
        }
        let page = operation.page;
        let (extent, at) = self.locate(page);
        let is_unsure = self.uncertain_pages.contains_key(&page);
        if self.extents[extent].pages.checksum(at).is_none() && !is_unsure {
            // Zeros, which no replica stores.
            operation.bytes = Some(Bytes::from_static(&ZEROS));
            if !operation.is_write() {
                return Some(Ok(()));
            }
        }
        let mut next = self.next_fetch(operation);
        if matches!(next, Fetch::Wait) && !operation.failed.is_empty() {
            // A replica that could not be read may have another session by now.
            operation.failed.clear();
            next = self.next_fetch(operation);
        }
        match next {
            Fetch::From(replica) => {
                self.read_page(id, operation, replica, now);
                None
            }
            Fetch::Wait => self.wait_for_extent(id, operation),
            Fetch::Lost if self.choose_alternative(operation) => {
                self.choose_stores(operation);
                None
            }
            Fetch::Lost => Some(Err(IoError::Lost { page })),
            Fetch::Known => {
                self.choose_stores(operation);
                None
            }
        }
    }

    fn next_fetch(&self, operation: &Operation) -> Fetch {
        let (extent, _) = self.locate(operation.page);
        let replicas = &self.extents[extent].replicas;
        let is_uncertain = self.is_uncertain(operation.page);
        let is_thorough = is_uncertain || matches!(operation.kind, OperationKind::Scrub { .. });
        if operation.bytes.is_some() && !is_thorough {
            return Fetch::Known;
        }
        let is_open = |replica: &&Replica| {
            let serial = replica.serial;
            !operation.wrong.contains(&serial) && !operation.right.contains(&serial)
        };
        // In-sync replicas first. The first replica depends on the page, to distribute the load.
        let turn = operation.page as usize % replicas.len().max(1);
        let in_turn = || replicas[turn..].iter().chain(&replicas[..turn]).filter(is_open);
        let can_read =
            |replica: &&Replica| replica.is_reachable() && !operation.failed.contains(&replica.serial);
        let in_sync = in_turn().filter(|replica| replica.is_in_sync()).find(can_read);
        // A replica that is being filled may have the page. A scrub does not read it.
        let filling = || in_turn().find(can_read).filter(|_| operation.bytes.is_none());
        match in_sync.or_else(filling) {
            Some(replica) => Fetch::From(replica.serial),
            // Every in-sync replica must be read before the content of an uncertain page is decided.
            None if is_uncertain && in_turn().any(Replica::is_in_sync) => Fetch::Wait,
            None if operation.bytes.is_some() => Fetch::Known,
            None if in_turn().next().is_some() => Fetch::Wait,
            None => Fetch::Lost,
        }
    }

    /// Handles the bytes read from a replica.
    pub(in super::super) fn check_fetched_page(
        &mut self,
        operation: &mut Operation,
        replica: u32,
        found: Bytes,
    ) {
        let page = operation.page;
        let (extent, at) = self.locate(page);
        let sum = self.checksums.of(page, &found);
        if self.is_uncertain(page) {
            return self.check_uncertain_page(operation, replica, found, sum);
        }
        let is_sum = self.extents[extent].pages.checksum(at) == Some(sum);
        let may_be = self.uncertain_pages.get(&page).is_some_and(|sums| sums.contains(&sum));
        if !is_sum && !may_be {
            // A replica that is being filled need not have the page yet.
            if self.extents[extent].replica(replica).is_some_and(Replica::is_in_sync) {
                self.counts.wrong += 1;
            }
            operation.wrong.push(replica);
            return;
        }
        operation.right.push(replica);
        if self.uncertain_pages.remove(&page).is_some() {
            // From now on this is the content of the page, and it is written to the other replicas.
            self.extents[extent].pages.set_checksum(at, sum);
            self.placement_dirty = true;
            self.save_pages(page..page + 1);
            let serials = self.extents[extent].replicas.iter().map(|replica| replica.serial);
            operation.wrong = serials.filter(|serial| *serial != replica).collect();
        }
        operation.bytes = Some(found);
    }

    /// Handles a replica of an uncertain page: it holds the latest write, the earlier content, or neither.
    fn check_uncertain_page(&self, operation: &mut Operation, replica: u32, found: Bytes, sum: u64) {
        let (extent, at) = self.locate(operation.page);
        let extent = &self.extents[extent];
        if extent.pages.checksum(at) == Some(sum) {
            operation.right.push(replica);
            operation.bytes = Some(found);
            return;
        }
        operation.wrong.push(replica);
        // A replica that is being filled does not show the earlier content.
        let is_in_sync = extent.replica(replica).is_some_and(Replica::is_in_sync);
        if extent.pages.alternative(at) == Some(sum) && is_in_sync {
            operation.with_alternative.push(replica);
            operation.alternative = Some(found);
        }
    }

    /// Decides for the content in the redo log if no in-sync replica has the latest write; without one, for the earlier
    /// content: the latest write was never acknowledged then. A write of the complete page needs none of these. Returns
    /// whether the bytes are known.
    fn choose_alternative(&mut self, operation: &mut Operation) -> bool {
        self.find_zeros(operation.page);
        if let Some(bytes) = self.redo.content(operation.page) {
            operation.bytes = Some(bytes);
            return true;
        }
        let is_full_write =
            matches!(&operation.kind, OperationKind::Write(part) if part.of_page == (0..PAGE_BYTES));
        let other = operation.alternative.take();
        if other.is_some() {
            let (extent, at) = self.locate(operation.page);
            self.extents[extent].pages.adopt_alternative(at);
            operation.wrong.retain(|serial| !operation.with_alternative.contains(serial));
            operation.right.append(&mut operation.with_alternative);
        }
        operation.bytes = other.or_else(|| is_full_write.then_some(Bytes::from_static(&ZEROS)));
        operation.bytes.is_some()
    }

    /// Selects the bytes to store, and the replicas to write.
    fn choose_stores(&mut self, operation: &mut Operation) {
        operation.state = OperationState::Storing;
        match &operation.kind {
            OperationKind::Write(_) => {
                operation.left = self.differing_replicas(operation);
                match operation.left.is_empty() {
                    true => {
                        self.finish_pending(operation.page);
                        self.merge_written_part(operation);
                    }
                    false => operation.state = OperationState::Repairing,
                }
            }
            OperationKind::Copy { to } => {
                operation.left.clone_from(&operation.wrong);
                if !operation.left.contains(to) && !operation.right.contains(to) {
                    operation.left.push(*to);
                }
            }
            // Nothing is changed by a read-only mount.
            _ if self.is_placement_fixed() => {}
            OperationKind::Read(_) | OperationKind::Scrub { .. } | OperationKind::Replay => {
                operation.left.clone_from(&operation.wrong)
            }
        }
    }

    /// Returns the in-sync replicas of a volume's page that differ from its content. There are none if no replica has
    /// valid content: the whole page is written then.
    fn differing_replicas(&self, operation: &Operation) -> Vec<u32> {
        if self.metadata.is_none() || (operation.right.is_empty() && !self.redo.is_pending(operation.page)) {
            return Vec::new();
        }
        let (extent, _) = self.locate(operation.page);
        let replicas = self.extents[extent].replicas.iter();
        let differs = |replica: &&Replica| replica.is_in_sync() && operation.wrong.contains(&replica.serial);
        replicas.filter(differs).map(|replica| replica.serial).collect()
    }

    /// Copies the bytes that are written into those of the page.
    pub(super) fn merge_written_part(&self, operation: &mut Operation) {
        if let OperationKind::Write(part) = &operation.kind
            && let Some(bytes) = operation.bytes.take()
        {
            let mut page = Vec::from(bytes);
            page[part.of_page.clone()].copy_from_slice(&self.requests.written(part));
            operation.bytes = Some(page.into());
        }
    }
}

//! Resolution of page faults.

use farcall_memory::PAGE_BYTES;
use farcall_verbs::{Clock, Nanos};

use super::{ABSENT, FETCHING, POISONED, Pager, RESIDENT, STAGED};
use crate::paged_memory::Moved;

/// Zeros with which new pages are filled, several at once.
static ZEROS: [u8; 64 * PAGE_BYTES] = [0; 64 * PAGE_BYTES];

/// A fault that is not resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub page: u32,
    /// `true` if the page was present and write-protected.
    pub is_protected: bool,
    /// Time when it was read from the userfaultfd.
    pub since: Nanos,
    pub has_waited: bool,
}

impl Pager {
    /// Resolves a fault, or queues it.
    pub(super) fn resolve(&mut self, fault: Waiting) {
        let is_resolved = match self.state(fault.page) {
            ABSENT => self.resolve_absent(fault),
            FETCHING => self.join_fetch(fault),
            STAGED => self.restore_staged(fault),
            RESIDENT if fault.is_protected => self.resolve_write(fault),
            RESIDENT => self.resolve_resident(fault),
            _ => {
                self.poison(fault.page);
                true
            }
        };
        if is_resolved {
            return;
        }
        self.counts.waited_for_room += u64::from(!fault.has_waited);
        self.waiting.push_back(Waiting { has_waited: true, ..fault });
    }

    /// Records a resolved fault.
    pub(super) fn record_resolved(&mut self, since: Nanos) {
        self.counts.faults += 1;
        self.fault_times.record(self.clock.now().since(since));
    }

    /// Resolves a fault on an absent page, with zeros or from the memory nodes, and reads ahead.
    fn resolve_absent(&mut self, fault: Waiting) -> bool {
        let page = fault.page;
        if !self.memory.has_room(1) || self.must_wait_for_snapshot(page) {
            return false;
        }
        if !self.free_space(1) {
            return self.poison_if_stores_fail(fault);
        }
        let ahead = self.detector.record_fault(page);
        if self.memory.is_written(page.into()) {
            self.counts.remote += 1;
            self.fetch(page, 1, Some(fault.since));
            self.fetch_ahead(page + 1, ahead);
            return true;
        }
        self.counts.zeros += 1;
        let is_zero = |pager: &Self, page: u32| {
            pager.states.get(page as usize) == Some(&ABSENT) && !pager.memory.is_written(page.into())
        };
        let wanted = (ahead as usize).min(ZEROS.len() / PAGE_BYTES - 1);
        let wanted = if self.snapshot.is_none() && self.free_space(1 + wanted) { wanted } else { 0 };
        let count = 1 + (page + 1..).take(wanted).take_while(|page| is_zero(self, *page)).count();
        self.save_zeros(page);
        self.install(page, &ZEROS[..count * PAGE_BYTES]);
        self.record_resolved(fault.since);
        true
    }

    /// Adds a fault to the fetch of its page, which is in flight.
    fn join_fetch(&mut self, fault: Waiting) -> bool {
        self.counts.on_the_way += 1;
        if let Some((_, fetch)) = self.fetches.range_mut(..=fault.page).next_back() {
            fetch.faults.push((fault.page, fault.since));
        }
        true
    }

    /// Resolves a fault on an evicted page that is still in its staging slot.
    fn restore_staged(&mut self, fault: Waiting) -> bool {
        let page = fault.page;
        let Some(slot) = self.staging.slot_of(page) else { return true };
        if self.must_wait_for_snapshot(page) {
            return false;
        }
        self.save_staged(page, slot);
        match self.paged.move_in(slot as usize, page as usize) {
            Moved::Yes => self.staging.remove(page),
            // The kernel cannot move it now: copy it and free the slot.
            Moved::Busy | Moved::Missing => {
                let bytes = self.paged.staged_bytes(slot as usize).to_vec();
                if self.paged.install(page as usize, &bytes).is_err() {
                    return false;
                }
                self.is_broken |= self.paged.free_slots(slot as usize, 1).is_err();
                self.staging.remove(page);
            }
        }
        self.releasing.remove(&page);
        self.set(page, RESIDENT);
        self.fifo.push(page);
        self.counts.staged += 1;
        self.record_resolved(fault.since);
        true
    }

    /// Resolves a write fault on a page that is protected for a snapshot.
    fn resolve_write(&mut self, fault: Waiting) -> bool {
        if !self.save_resident(fault.page) {
            return false;
        }
        // `save_resident` may have moved the page out and back, which removes the protection.
        let _ = self.paged.unprotect(fault.page as usize);
        let _ = self.paged.wake(fault.page as usize);
        self.counts.protected += 1;
        self.record_resolved(fault.since);
        true
    }

    /// Resolves a fault on a page that is recorded as resident. The fault may be older than that record; then the page
    /// is present and the thread is woken. Otherwise the program has removed the page (madvise, mremap), and its bytes
    /// are lost.
    fn resolve_resident(&mut self, fault: Waiting) -> bool {
        if self.paged.poison(fault.page as usize) {
            self.fifo.remove(fault.page);
            self.set(fault.page, POISONED);
            self.counts.poisoned += 1;
        } else {
            let _ = self.paged.wake(fault.page as usize);
        }
        true
    }

    /// Poisons a page that cannot be read: every access to it raises SIGBUS, including those that wait for it.
    pub(super) fn poison(&mut self, page: u32) {
        self.counts.poisoned += u64::from(self.state(page) != POISONED);
        self.set(page, POISONED);
        if !self.paged.poison(page as usize) {
            let _ = self.paged.wake(page as usize);
        }
    }

    /// Called if there is no space for a page. Space becomes free when stores complete. If all stores have failed for
    /// longer than the configured patience, poisons the page and returns `true`.
    fn poison_if_stores_fail(&mut self, fault: Waiting) -> bool {
        let now = self.clock.now();
        let patience = self.limits.patience;
        if self.failing_since.is_none_or(|since| now.since(since) < patience) {
            return false;
        }
        self.poison(fault.page);
        true
    }

    /// Fills missing pages.
    pub(super) fn install(&mut self, first: u32, bytes: &[u8]) {
        let (mut at, count) = (0, bytes.len() / PAGE_BYTES);
        while at < count {
            let done = self.paged.install(first as usize + at, &bytes[at * PAGE_BYTES..]);
            let (there, error) =
                done.map_or_else(|(there, error)| (there, Some(error)), |()| (count - at, None));
            for page in first + at as u32..first + (at + there) as u32 {
                self.set(page, RESIDENT);
                self.fifo.push(page);
            }
            at += there;
            if error.is_some() && at < count {
                // The page is present although this pager did not fill it, or there is no memory. Poison it: the
                // program must never read other bytes.
                self.poison(first + at as u32);
                at += 1;
            }
        }
    }
}

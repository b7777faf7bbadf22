//! Scrubs: reading every replica of every page to find errors in pages that no request reads. They run on request, and
//! periodically at a low rate.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::Engine;
use super::operation::{Operation, OperationKind};

/// Interval between two steps of the periodic scrub.
const STEP_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of pages of the periodic scrub in flight: most background operations are reserved for copies.
const IN_FLIGHT_MAX: usize = 2;

/// The periodic scrub.
#[derive(Clone, Copy, Default)]
pub(super) struct PeriodicScrub {
    /// The page at which it continues.
    next: u64,
    in_flight: usize,
    /// Number of pages left in this step.
    left: usize,
    next_step_at: Nanos,
}

impl Engine {
    /// Returns the time of the next step of the periodic scrub; `None` if there is nothing to read.
    pub(super) fn periodic_scrub_due(&self) -> Option<Nanos> {
        let has_pages =
            self.config.scrub_pages_per_s > 0 && self.extents.iter().any(|extent| extent.is_touched);
        let PeriodicScrub { left, next_step_at, .. } = self.periodic_scrub;
        has_pages.then_some(if left > 0 { self.next_maintenance_at } else { next_step_at })
    }

    /// Begins a scrub if a node has requested one since the last one began. All nodes share one.
    fn begin_requested_scrub(&mut self) {
        if self.requests.is_scrubbed_for_nodes() {
            return;
        }
        let mut is_requested = false;
        for scrubs in self.nodes.iter_mut().map(|client| &mut client.scrubs) {
            is_requested |= scrubs.requested > scrubs.begun;
            scrubs.begun = scrubs.requested;
        }
        if is_requested {
            self.requests.begin_scrub(None);
        }
    }

    /// Continues the scrub that was requested, or the periodic one.
    pub(super) fn scrub(&mut self, now: Nanos) {
        self.begin_requested_scrub();
        while self.has_background_room()
            && let Some(scrub) = self.requests.scrub
        {
            let Some(page) = self.next_written(scrub.next) else {
                if scrub.in_flight > 0 {
                    return;
                }
                let pages = self.requests.scrubbed_for_nodes();
                if self.requests.finish_scrub() {
                    let all = self.nodes.iter_mut().map(|client| &mut client.scrubs);
                    let concerned = all.filter(|scrubs| scrubs.begun > scrubs.complete);
                    concerned.for_each(|scrubs| (scrubs.complete, scrubs.pages) = (scrubs.begun, pages));
                }
                continue;
            };
            self.requests.count_scrubbed(page);
            self.begin(Operation::new(
                page,
                OperationKind::Scrub { is_periodic: false },
                now + self.config.patience,
            ));
        }
        if self.requests.scrub.is_none() {
            self.scrub_periodically(now);
        }
    }

    fn scrub_periodically(&mut self, now: Nanos) {
        if self.periodic_scrub_due().is_none() {
            return;
        }
        if now >= self.periodic_scrub.next_step_at {
            self.periodic_scrub.next_step_at = now + STEP_INTERVAL;
            // Copies and joining nodes come first: while they are needed, replicas are missing or unreachable.
            let is_next = self.is_fully_replicated()
                && !self.is_fenced()
                && !self.nodes.iter().any(|client| client.is_ending);
            self.periodic_scrub.left = if is_next { self.config.scrub_pages_per_s } else { 0 };
        }
        while self.periodic_scrub.left > 0
            && self.periodic_scrub.in_flight < IN_FLIGHT_MAX
            && self.has_background_room()
        {
            let Some(page) = self.next_written(self.periodic_scrub.next) else {
                // Each page is read at most once per step.
                let is_at_start = self.periodic_scrub.next == 0;
                (self.periodic_scrub.next, self.periodic_scrub.left) = (0, 0);
                if !is_at_start {
                    tracing::debug!("every page was read of every replica");
                }
                return;
            };
            let scrub = &mut self.periodic_scrub;
            (scrub.next, scrub.left, scrub.in_flight) = (page + 1, scrub.left - 1, scrub.in_flight + 1);
            self.begin(Operation::new(
                page,
                OperationKind::Scrub { is_periodic: true },
                now + self.config.patience,
            ));
        }
    }

    pub(super) fn page_scrubbed(&mut self, is_periodic: bool) {
        self.counts.scrubbed += 1;
        if is_periodic {
            self.periodic_scrub.in_flight -= 1;
        } else if let Some(scrub) = &mut self.requests.scrub {
            scrub.in_flight -= 1;
        }
    }

    /// Returns the first page at or after `from` that was written.
    fn next_written(&self, from: u64) -> Option<u64> {
        let (extent, at) = self.locate(from);
        let in_order = (extent..self.extents.len()).zip(std::iter::once(at).chain(std::iter::repeat(0)));
        let mut found = in_order.filter_map(|(extent, at)| {
            let page = self.extents[extent].pages.next_written(at)?;
            Some(extent as u64 * self.pages_per_extent() + page as u64)
        });
        found.next()
    }
}

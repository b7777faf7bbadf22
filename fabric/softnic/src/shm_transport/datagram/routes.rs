//! Rings of a datagram queue pair: one for each destination.

use std::sync::Arc;

use super::blocked_datagrams::Enqueued;
use super::core::DatagramCore;
use super::{BlockedDatagrams, Message, SendOutcome, TxRing};
use crate::process::QpnMap;

/// Maximum number of destinations; beyond it the least recently used is removed.
const MAX_ROUTES: usize = 1024;

enum RouteState {
    Resolving(Arc<BlockedDatagrams>),
    Open(Box<TxRing>),
}

struct Route {
    state: RouteState,
    last_used: u64,
}

#[derive(Default)]
pub(crate) struct Routes {
    routes: QpnMap<Route>,
    ticks: u64,
    /// Destination to which datagrams were published that are not announced yet.
    unannounced: Option<u32>,
}

impl Routes {
    /// Sends a datagram to a destination, stores it until the destination accepts it, or drops it. If the result is
    /// `Some`, the request completes only when that [`BlockedDatagrams`] releases its number.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<BlockedDatagrams>, u64)> {
        self.ticks += 1;
        if self.unannounced != Some(dst_qpn) {
            self.announce();
        }
        if let Some(Route { state: RouteState::Open(tx_ring), last_used }) = self.routes.get_mut(&dst_qpn)
            && tx_ring.is_current()
        {
            *last_used = self.ticks;
            // SAFETY: by the contract of this function the elements are readable.
            let outcome = unsafe { tx_ring.offer(message) };
            self.unannounced = Some(dst_qpn);
            if outcome != SendOutcome::Sent && tx_ring.is_worth_waiting(outcome) {
                // SAFETY: by the contract of this function the elements are readable.
                return unsafe { self.store_blocked(core, dst_qpn, message) };
            }
            core.stats.offered(outcome, message.len_bytes as u64);
            return None;
        }
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { self.send_slow(core, dst_qpn, message) }
    }

    /// Stores the datagram for a destination that accepts none at the moment.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[cold]
    unsafe fn store_blocked(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<BlockedDatagrams>, u64)> {
        self.announce();
        let Some(Route { state: RouteState::Open(tx_ring), .. }) = self.routes.remove(&dst_qpn) else {
            return None;
        };
        core.stats.held.increment();
        // SAFETY: by the contract of this function the elements are readable.
        let blocked = Arc::new(unsafe { BlockedDatagrams::blocked(dst_qpn, tx_ring, message) });
        self.insert(dst_qpn, RouteState::Resolving(blocked.clone()));
        Some((blocked, 0))
    }

    /// Handles a destination without a usable ring: none was requested yet, it was revoked, or it was just granted.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[cold]
    unsafe fn send_slow(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<BlockedDatagrams>, u64)> {
        let mut was_refused = false;
        if let Some(Route { state: RouteState::Resolving(blocked), .. }) = self.routes.get(&dst_qpn) {
            // SAFETY: by the contract of this function the elements are readable.
            match unsafe { blocked.enqueue(message) } {
                Enqueued::Early => {
                    core.stats.queued.increment();
                    return None;
                }
                Enqueued::Waits(number) => {
                    core.stats.held.increment();
                    return Some((blocked.clone(), number));
                }
                Enqueued::Dropped => {
                    core.stats.dropped_queue_full.increment();
                    return None;
                }
                Enqueued::Ready(tx_ring) => {
                    self.insert(dst_qpn, RouteState::Open(tx_ring));
                    // SAFETY: by the contract of this function the elements are readable. The recursion ends: if the
                    // ring is closed by now, its entry in the table is `Open` and not `Resolving`.
                    return unsafe { self.send(core, dst_qpn, message) };
                }
                Enqueued::Failed => was_refused = true,
            }
        }
        self.remove(dst_qpn);
        let blocked = Arc::new(BlockedDatagrams::new(dst_qpn));
        // SAFETY: by the contract of this function the elements are readable.
        if let Enqueued::Early = unsafe { blocked.enqueue(message) } {
            core.stats.queued.increment();
        }
        self.insert(dst_qpn, RouteState::Resolving(blocked.clone()));
        core.request_ring(blocked, was_refused);
        None
    }

    fn insert(&mut self, dst_qpn: u32, state: RouteState) {
        if !self.routes.contains_key(&dst_qpn) {
            self.make_space();
        }
        self.routes.insert(dst_qpn, Route { state, last_used: self.ticks });
    }

    fn remove(&mut self, dst_qpn: u32) {
        self.routes.remove(&dst_qpn);
        self.unannounced = self.unannounced.filter(|unannounced| *unannounced != dst_qpn);
    }

    /// Removes the rings that are not usable any more, and releases their descriptors. If the table is still full,
    /// removes the least recently used destination.
    fn make_space(&mut self) {
        self.routes.retain(|_, route| match &route.state {
            RouteState::Open(tx_ring) => tx_ring.is_current(),
            RouteState::Resolving(blocked) => !blocked.is_unusable(),
        });
        if self.routes.len() < MAX_ROUTES {
            return;
        }
        let oldest = self.routes.iter().min_by_key(|(_, route)| route.last_used).map(|(qpn, _)| *qpn);
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
    }

    /// Announces the last datagrams to their destination.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if let Some(dst_qpn) = self.unannounced.take()
            && let Some(Route { state: RouteState::Open(tx_ring), .. }) = self.routes.get_mut(&dst_qpn)
        {
            tx_ring.announce();
        }
    }

    /// Removes all destinations.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.unannounced = None;
    }
}

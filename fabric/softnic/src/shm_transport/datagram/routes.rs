//! Rings of a datagram queue pair: one for each destination.

use std::sync::Arc;

use super::blocked_datagrams::Enqueued;
use super::core::DatagramCore;
use super::{Message, Outlet, Pending, SendOutcome};
use crate::process::QpnMap;

/// Maximum number of destinations; beyond it the least recently used is removed.
const MAX_ROUTES: usize = 1024;

enum RouteWay {
    Sought(Arc<Pending>),
    Open(Box<Outlet>),
}

struct Route {
    way: RouteWay,
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
    /// `Some`, the request completes only when that [`Pending`] releases its number.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<Pending>, u64)> {
        self.ticks += 1;
        if self.unannounced != Some(dst_qpn) {
            self.ring();
        }
        if let Some(Route { way: RouteWay::Open(outlet), last_used }) = self.routes.get_mut(&dst_qpn)
            && outlet.is_current()
        {
            *last_used = self.ticks;
            // SAFETY: by the contract of this function the elements are readable.
            let outcome = unsafe { outlet.offer(message) };
            self.unannounced = Some(dst_qpn);
            if outcome != SendOutcome::Sent && outlet.is_worth_waiting(outcome) {
                // SAFETY: by the contract of this function the elements are readable.
                return unsafe { self.block(core, dst_qpn, message) };
            }
            core.stats.offered(outcome, message.len_bytes as u64);
            return None;
        }
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { self.find(core, dst_qpn, message) }
    }

    /// Stores the datagram for a destination that accepts none at the moment.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[cold]
    unsafe fn block(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<Pending>, u64)> {
        self.ring();
        let Some(Route { way: RouteWay::Open(outlet), .. }) = self.routes.remove(&dst_qpn) else {
            return None;
        };
        core.stats.held.increment();
        // SAFETY: by the contract of this function the elements are readable.
        let pending = Arc::new(unsafe { Pending::blocked(dst_qpn, outlet, message) });
        self.insert(dst_qpn, RouteWay::Sought(pending.clone()));
        Some((pending, 0))
    }

    /// Handles a destination without a usable ring: none was requested yet, it was revoked, or it was just granted.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[cold]
    unsafe fn find(
        &mut self,
        core: &DatagramCore,
        dst_qpn: u32,
        message: &Message<'_>,
    ) -> Option<(Arc<Pending>, u64)> {
        let mut was_lost = false;
        if let Some(Route { way: RouteWay::Sought(pending), .. }) = self.routes.get(&dst_qpn) {
            // SAFETY: by the contract of this function the elements are readable.
            match unsafe { pending.keep(message) } {
                Enqueued::Early => {
                    core.stats.queued.increment();
                    return None;
                }
                Enqueued::Waits(number) => {
                    core.stats.held.increment();
                    return Some((pending.clone(), number));
                }
                Enqueued::Dropped => {
                    core.stats.dropped_queue_full.increment();
                    return None;
                }
                Enqueued::Found(outlet) => {
                    self.insert(dst_qpn, RouteWay::Open(outlet));
                    // SAFETY: by the contract of this function the elements are readable. The recursion ends: if the
                    // ring is closed by now, its entry in the table is `Open` and not `Sought`.
                    return unsafe { self.send(core, dst_qpn, message) };
                }
                Enqueued::Lost => was_lost = true,
            }
        }
        self.forget(dst_qpn);
        let pending = Arc::new(Pending::new(dst_qpn));
        // SAFETY: by the contract of this function the elements are readable.
        if let Enqueued::Early = unsafe { pending.keep(message) } {
            core.stats.queued.increment();
        }
        self.insert(dst_qpn, RouteWay::Sought(pending.clone()));
        core.ask(pending, was_lost);
        None
    }

    fn insert(&mut self, dst_qpn: u32, way: RouteWay) {
        if !self.routes.contains_key(&dst_qpn) {
            self.make_room();
        }
        self.routes.insert(dst_qpn, Route { way, last_used: self.ticks });
    }

    fn forget(&mut self, dst_qpn: u32) {
        self.routes.remove(&dst_qpn);
        self.unannounced = self.unannounced.filter(|unannounced| *unannounced != dst_qpn);
    }

    /// Removes the rings that are not usable any more, and releases their descriptors. If the table is still full,
    /// removes the least recently used destination.
    fn make_room(&mut self) {
        self.routes.retain(|_, route| match &route.way {
            RouteWay::Open(outlet) => outlet.is_current(),
            RouteWay::Sought(pending) => !pending.leads_nowhere(),
        });
        if self.routes.len() < MAX_ROUTES {
            return;
        }
        let oldest = self.routes.iter().min_by_key(|(_, route)| route.last_used).map(|(qpn, _)| *qpn);
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
    }

    /// Announces the last datagrams to their destination.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if let Some(dst_qpn) = self.unannounced.take()
            && let Some(Route { way: RouteWay::Open(outlet), .. }) = self.routes.get_mut(&dst_qpn)
        {
            outlet.ring();
        }
    }

    /// Removes all destinations.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.unannounced = None;
    }
}

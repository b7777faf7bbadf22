//! Resizing of the receive ring.

use std::sync::Arc;
use std::time::Duration;

use farcall_link::{PostRefused, Region, RemoteRegion};
use farcall_verbs::{Access, Nanos};

use super::RingStream;
use super::open::{allocate_send_ring, is_ring};
use crate::error::Broken;
use crate::receive_ring::OFFER_WORDS;

/// Time without received bytes after which a longer ring is released.
const IDLE_AFTER: Duration = Duration::from_secs(1);

impl RingStream {
    /// Offers a longer ring if the peer keeps filling this one.
    #[inline]
    pub(super) fn grow(&mut self) {
        if let Some(len_bytes) = self.recv_half.ring.longer_ring_bytes() {
            self.offer_longer(len_bytes);
        }
    }

    #[cold]
    fn offer_longer(&mut self, len_bytes: usize) {
        match Region::alloc(&*self.pd, len_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            Ok(longer) => self.recv_half.ring.offer(Some(Arc::new(longer))),
            Err(_) => self.recv_half.ring.keep_current(),
        }
    }

    /// Offers the first ring again if no bytes have arrived for [`IDLE_AFTER`]. If the current ring is longer and this
    /// is not due yet, returns the time when it is.
    pub(super) fn shrink(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.recv_half.ring.is_grown() {
            return None;
        }
        if self.recv_half.seen != self.moved_at.0 || self.recv_half.available() > 0 {
            self.moved_at = (self.recv_half.seen, now);
        }
        let due = self.moved_at.1 + IDLE_AFTER;
        if now < due {
            return Some(due);
        }
        self.recv_half.ring.offer(None);
        self.send_words();
        None
    }

    /// Sends an offer that is due.
    #[inline]
    pub(super) fn send_offer(&mut self) -> Result<(), PostRefused> {
        if let Some(offer) = self.recv_half.ring.due()
            && self.connection.room() > 0
        {
            self.send_half.send_offer(&mut self.connection, offer)?;
            self.recv_half.ring.on_offer_sent();
            self.counters.rings_offered += 1;
        }
        Ok(())
    }

    /// Handles the peer's offer of another ring: further bytes are written there.
    #[cold]
    pub(super) fn take_offer(&mut self) -> Result<(), Broken> {
        let [number, addr, len_bytes, rkey]: [u64; OFFER_WORDS] = self.recv_half.offered();
        let (Ok(number), Ok(rkey)) = (u16::try_from(number), u32::try_from(rkey)) else {
            return Err(Broken::Protocol(format!("a ring numbered {number} of key {rkey}")));
        };
        if !is_ring(len_bytes) || self.send_half.turn.is_some() {
            return Err(Broken::Protocol(format!("a ring of {len_bytes} bytes, or two at once")));
        }
        // If no longer send ring can be allocated, the peer's ring is used with the present one.
        let local = allocate_send_ring(&*self.pd, &self.config, len_bytes).ok();
        let grant = RemoteRegion { addr, len_bytes, rkey };
        self.send_half.switch_to(&mut self.connection, number, grant, local);
        self.counters.rings_taken += 1;
        Ok(())
    }
}

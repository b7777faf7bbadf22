//! Congestion: notifications of the peer about marked packets (the notification point of annex A17.9), and the sending
//! rate after notifications of the peer (the reaction point).
//!
//! A queue pair without notifications has no rate control, sets no timer, and checks one `Option` per packet.

use farcall_verbs::QpType;

use super::Qp;
use crate::adapter::{Adapter, Event, Timer};
use crate::packet::{Operation, Packet};
use crate::psn::Psn;
use crate::rate_control::RateControl;

/// Minimum interval between two notifications of a queue pair's peer: N of DCQCN (section 5.2).
const CNP_INTERVAL_NS: u64 = 50_000;
/// Timers expire late. At most this time's worth of packets is sent in addition to make up for it.
const LATE_NS: u64 = 100_000;
/// Length that counts for a packet in addition to its payload: approximately Ethernet, IP, UDP, BTH and CRC.
const HEADERS_BYTES: u64 = 64;

/// Congestion state of the paths from and to the peer.
#[derive(Default)]
pub(super) struct Congestion {
    /// Earliest time of the next notification of the peer.
    next_cnp_ns: u64,
    pace: Option<Pace>,
}

/// Pacing of a queue pair whose peer has sent notifications.
struct Pace {
    control: Box<dyn RateControl>,
    /// Earliest time of the next packet.
    next_ns: u64,
    is_waiting: bool,
}

impl Congestion {
    pub(super) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Returns whether the next packet waits for its time.
    pub(super) fn is_waiting(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.is_waiting)
    }

    /// Records that the time of the next packet has come.
    pub(super) fn end_wait(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.is_waiting = false;
        }
    }

    /// Ends the pacing, for a new connection. The interval of notifications is not shortened by this.
    pub(super) fn reset_pace(&mut self) {
        self.pace = None;
    }
}

impl<S, R> Qp<S, R> {
    /// Handles the mark "congestion experienced" in the IP header of a packet from the peer, after [`Qp::arrived`]
    /// handled the packet. Marked acknowledgements cause no notification, because their sender does not slow down for
    /// them.
    pub fn marked(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet) {
        let is_of_peer = packet.transport == self.config.transport && self.config.transport != QpType::Ud;
        if !is_of_peer || !packet.operation.is_paced() || !self.state.responds() {
            return;
        }
        let now_ns = adapter.now_ns();
        if now_ns >= self.congestion.next_cnp_ns {
            self.congestion.next_cnp_ns = now_ns + CNP_INTERVAL_NS;
            adapter.event(Event::CnpSent);
            self.send_empty(adapter, Psn::default(), Operation::CongestionNotification);
        }
    }

    /// Handles a congestion notification of the peer.
    pub(super) fn notified(&mut self, adapter: &mut impl Adapter<S, R>) {
        if self.config.transport == QpType::Ud || !self.state.responds() {
            return;
        }
        adapter.event(Event::CnpReceived);
        let now_ns = adapter.now_ns();
        let new = || Pace { control: (self.config.rate_control)(now_ns), next_ns: now_ns, is_waiting: false };
        self.congestion.pace.get_or_insert_with(new).control.notified(now_ns);
    }

    /// Returns whether the pacing allows the next packet now. If not, sets a timer for its time.
    pub(super) fn is_due(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        let Some(pace) = &mut self.congestion.pace else { return true };
        let wait_ns = pace.next_ns.saturating_sub(adapter.now_ns());
        if wait_ns > 0 && !std::mem::replace(&mut pace.is_waiting, true) {
            adapter.set_timer(Timer::Pace, Some(wait_ns));
        }
        wait_ns == 0
    }

    /// Records the transmission of a packet with a payload of `payload_bytes`: the next packet waits as long as the
    /// rate requires.
    pub(super) fn count_sent(&mut self, adapter: &impl Adapter<S, R>, payload_bytes: u64) {
        let Some(pace) = &mut self.congestion.pace else { return };
        let (now_ns, len_bytes) = (adapter.now_ns(), payload_bytes + HEADERS_BYTES);
        pace.control.sent(len_bytes);
        match pace.control.rate_bytes_per_s(now_ns) {
            Some(rate) => {
                let from_ns = pace.next_ns.max(now_ns.saturating_sub(LATE_NS));
                pace.next_ns = from_ns + len_bytes * 1_000_000_000 / rate.max(1);
            }
            None => self.congestion.pace = None,
        }
    }
}

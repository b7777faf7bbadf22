//! Congestion: what a queue pair tells its peer of marked packets (the notification point of annex A17.9), and how slowly
//! it sends when the peer tells it (the reaction point).
//!
//! A pair that nobody told of congestion has no rate control, sets no timer, and looks at one `Option` for each packet.

use farcall_verbs::QpType;

use super::Qp;
use crate::adapter::{Adapter, Event, Timer};
use crate::packet::{Operation, Packet};
use crate::psn::Psn;
use crate::rate_control::RateControl;

/// A queue pair tells its peer of congestion once in so long at most: N of DCQCN (section 5.2).
const NOTIFICATION_NS: u64 = 50_000;
/// Timers end late. So much of what could have been sent meanwhile is made up for.
const LATE_NS: u64 = 100_000;
/// What counts for a packet besides its payload: Ethernet, IP, UDP, BTH and CRC, about.
const HEADERS_BYTES: u64 = 64;

/// How congested the ways from and to the peer are.
#[derive(Default)]
pub(super) struct Congestion {
    /// When the peer may be told the next time.
    tells_from_ns: u64,
    pace: Option<Pace>,
}

/// The pace of a pair whose peer told of congestion.
struct Pace {
    control: Box<dyn RateControl>,
    /// When the next packet may go.
    next_ns: u64,
    is_waiting: bool,
}

impl Congestion {
    pub(super) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Whether the next packet waits for its time.
    pub(super) fn is_waiting(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.is_waiting)
    }

    /// The time of the next packet has come.
    pub(super) fn wait_is_over(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.is_waiting = false;
        }
    }

    /// As for a pair that is connected anew. The peer is not told more often because of it.
    pub(super) fn forget_pace(&mut self) {
        self.pace = None;
    }
}

impl<S, R> Qp<S, R> {
    /// A packet came in from the peer with the mark "congestion experienced" in its IP header, besides
    /// [`Qp::arrived`], which came before. Acknowledgements are not told of: their sender does not slow down for them.
    pub fn marked(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet) {
        let is_of_peer = packet.transport == self.config.transport && self.config.transport != QpType::Ud;
        if !is_of_peer || !packet.operation.is_paced() || !self.state.responds() {
            return;
        }
        let now_ns = adapter.now_ns();
        if now_ns >= self.congestion.tells_from_ns {
            self.congestion.tells_from_ns = now_ns + NOTIFICATION_NS;
            adapter.event(Event::CongestionTold);
            self.send_empty(adapter, Psn::default(), Operation::CongestionNotification);
        }
    }

    /// The peer tells of congestion.
    pub(super) fn notified(&mut self, adapter: &mut impl Adapter<S, R>) {
        if self.config.transport == QpType::Ud || !self.state.responds() {
            return;
        }
        adapter.event(Event::CongestionNotified);
        let now_ns = adapter.now_ns();
        let new = || Pace { control: (self.config.rate_control)(now_ns), next_ns: now_ns, is_waiting: false };
        self.congestion.pace.get_or_insert_with(new).control.notified(now_ns);
    }

    /// Whether the pace lets the next packet go now. If not, a timer says when it does.
    pub(super) fn is_due(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        let Some(pace) = &mut self.congestion.pace else { return true };
        let wait_ns = pace.next_ns.saturating_sub(adapter.now_ns());
        if wait_ns > 0 && !std::mem::replace(&mut pace.is_waiting, true) {
            adapter.set_timer(Timer::Pace, Some(wait_ns));
        }
        wait_ns == 0
    }

    /// A packet with so much payload was sent: the next one waits for as long as the rate asks for.
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

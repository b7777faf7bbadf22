//! A queue pair: its settings, its state, and the handling of received packets.
//!
//! [`requester`] cuts a send request into packets. [`responder`] checks them in their order and places the payload.
//! [`replies`] then performs the following steps in order (completions, READs, atomics, acknowledgements).
//! [`responses`] handles the responses at the requester, and [`timers`] their absence. [`congestion`] notifies the peer
//! of congestion and paces the queue pair. [`flush`] ends all requests.

mod congestion;
mod datagram;
mod fit;
mod flush;
mod repeats;
mod replies;
mod requester;
mod responder;
mod responses;
mod send_queue;
mod timers;
mod window;

use farcall_verbs::{Access, AsyncEventKind, Mtu, QpAttr, QpState, QpType, RnrTimer};

use crate::adapter::{Adapter, Event, Payload};
use crate::packet::{Operation, Packet};
use crate::psn::Psn;
use crate::rate_control::NewRateControl;
use congestion::Congestion;
pub use fit::Fit;
pub use replies::Responded;
use responder::Responder;
use send_queue::SendQueue;
pub use send_queue::{SendRequest, Work};
use timers::Timers;
use window::Window;

/// Parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Transport.
    pub transport: QpType,
    /// Whether it uses a shared receive queue.
    pub has_srq: bool,
    /// MTU of the port, the maximum length of a datagram.
    pub port_mtu: Mtu,
    /// Maximum message length in bytes.
    pub message_bytes_max: u64,
    /// Initial and minimum limit of unacknowledged packets.
    pub unacknowledged_min: u32,
    /// Maximum limit of unacknowledged packets, reached while none are lost.
    pub unacknowledged_max: u32,
    /// Maximum number of data packets that one READ request requests, at least 1. A longer READ becomes several
    /// consecutive requests on the wire, so that its responses do not overrun the requester.
    pub read_packets_max: u32,
    /// Creates the rate control when the peer sends the first congestion notification.
    pub rate_control: NewRateControl,
}

/// Settings of `modify`.
#[derive(Clone, Copy, Debug)]
struct Settings {
    access: Access,
    qkey: u32,
    dest_qpn: u32,
    mtu: Mtu,
    rnr_timer: RnrTimer,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
}

impl Settings {
    const NONE: Self = Self {
        access: Access::empty(),
        qkey: 0,
        dest_qpn: 0,
        mtu: Mtu::Mtu4096,
        rnr_timer: RnrTimer(0),
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
    };

    fn with(self, attr: &QpAttr) -> Self {
        Self {
            access: attr.access.unwrap_or(self.access),
            qkey: attr.qkey.unwrap_or(self.qkey),
            dest_qpn: attr.dest_qp_num.unwrap_or(self.dest_qpn),
            mtu: attr.path_mtu.unwrap_or(self.mtu),
            rnr_timer: attr.min_rnr_timer.unwrap_or(self.rnr_timer),
            timeout: attr.timeout.unwrap_or(self.timeout),
            retry_cnt: attr.retry_cnt.unwrap_or(self.retry_cnt),
            rnr_retry: attr.rnr_retry.unwrap_or(self.rnr_retry),
            max_rd_atomic: attr.max_rd_atomic.unwrap_or(self.max_rd_atomic),
            max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(self.max_dest_rd_atomic),
        }
    }
}

/// A queue pair. `S` and `R` are its adapter's posted requests: see [`Adapter`].
pub struct Qp<S, R> {
    config: QpConfig,
    state: QpState,
    settings: Settings,
    /// Whether the program receives an event when the send queue has drained.
    notifies_drained: bool,
    sends: SendQueue<S>,
    timers: Timers,
    congestion: Congestion,
    window: Window,
    responder: Responder<R>,
}

impl<S, R> Qp<S, R> {
    /// Creates a queue pair in the RESET state.
    #[must_use]
    pub fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: QpState::Reset,
            settings: Settings::NONE,
            notifies_drained: false,
            sends: SendQueue::default(),
            timers: Timers::default(),
            congestion: Congestion::default(),
            window: Window::new(config.unacknowledged_min, config.unacknowledged_max),
            responder: Responder::default(),
        }
    }

    /// Returns the parameters of the queue pair.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Returns the Q_Key that it accepts.
    #[must_use]
    pub fn qkey(&self) -> u32 {
        self.settings.qkey
    }

    /// Returns the peer's queue pair number.
    #[must_use]
    pub fn dest_qpn(&self) -> u32 {
        self.settings.dest_qpn
    }

    /// Changes state and settings. The caller must have checked the transition and its attributes, and should call
    /// [`Qp::transmit`] afterwards.
    pub fn modify(&mut self, adapter: &mut impl Adapter<S, R>, attr: &QpAttr) {
        let (from, to) = (self.state, attr.state.unwrap_or(self.state));
        self.settings = self.settings.with(attr);
        match to {
            QpState::Reset => self.reset(adapter),
            QpState::Err => self.enter_error(adapter),
            QpState::Init => self.set_state(adapter, to),
            QpState::Rtr => {
                self.responder.start(Psn::new(attr.rq_psn.unwrap_or(0)));
                self.set_state(adapter, to);
            }
            QpState::Rts => {
                if from == QpState::Rtr {
                    self.sends.start(Psn::new(attr.sq_psn.unwrap_or(0)));
                }
                self.renew_retries();
                self.set_state(adapter, to);
            }
            QpState::Sqd => {
                self.notifies_drained = attr.en_sqd_async_notify.unwrap_or(false);
                if from != QpState::Sqd {
                    self.set_state(adapter, to);
                    self.notify_if_drained(adapter);
                }
            }
            QpState::Sqe => {}
        }
    }

    /// Handles a packet that was received for this queue pair, from its peer if it has one. `payload` is borrowed for
    /// this call only.
    pub fn arrived(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet, payload: &[u8]) {
        if packet.operation == Operation::CongestionNotification {
            self.notified(adapter);
            return;
        }
        if packet.transport != self.config.transport {
            return;
        }
        if let Operation::Datagram(deth, imm_be) = packet.operation {
            self.datagram_arrived(adapter, deth, (imm_be, packet.solicited), payload);
        } else if self.config.transport == QpType::Ud {
            // UD queue pairs handle datagrams only.
        } else if packet.operation.is_response() {
            self.handle_response(adapter, packet, payload);
        } else if self.state.responds() {
            self.requested(adapter, packet, payload);
        } else if self.state == QpState::Err {
            self.requested_after_failure(adapter, packet);
        }
    }

    fn mtu_bytes(&self) -> u64 {
        u64::from(self.settings.mtu.bytes())
    }

    /// Returns whether requests are executed rather than flushed.
    fn runs(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    fn set_state(&mut self, adapter: &mut impl Adapter<S, R>, to: QpState) {
        self.state = to;
        adapter.event(Event::State(to));
    }

    /// Raises the event if a draining send queue is empty.
    fn notify_if_drained(&mut self, adapter: &mut impl Adapter<S, R>) {
        if self.state == QpState::Sqd && !self.sends.waits() && std::mem::take(&mut self.notifies_drained) {
            adapter.event(Event::Async(AsyncEventKind::SqDrained));
        }
    }

    /// Returns a packet to the peer that requests neither an acknowledgement nor a solicited event.
    fn packet(&self, psn: Psn, operation: Operation) -> Packet {
        let (transport, dest_qpn) = (self.config.transport, self.settings.dest_qpn);
        Packet { transport, operation, solicited: false, ack_req: false, dest_qpn, psn }
    }

    /// Sends a packet without payload.
    fn send_empty(&self, adapter: &mut impl Adapter<S, R>, psn: Psn, operation: Operation) {
        // A packet without payload cannot be refused.
        let _sent = adapter.transmit(self.packet(psn, operation), Payload::None);
    }
}

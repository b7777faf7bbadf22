//! What a responder does in order, once payload has landed: completions, READs, atomics, answers.

use farcall_verbs::{Access, AsyncEventKind, Wc, WcStatus};

use super::Qp;
use super::responder::Remembered;
use crate::packet::{AtomicOp, Body, Nak, Psn, Target};
use crate::queue::Event;
use crate::receive::Receive;
use crate::state::State;
use crate::trace::What;

/// Why a request is refused, and what becomes of the receive it took.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) nak: Nak,
    pub(super) receive: Option<(Receive, WcStatus)>,
}

impl Failure {
    pub(super) const fn of_request(nak: Nak) -> Self {
        Self { nak, receive: None }
    }

    pub(super) const fn of_receive(nak: Nak, receive: Receive, status: WcStatus) -> Self {
        Self { nak, receive: Some((receive, status)) }
    }
}

/// One thing to do.
pub(super) enum Step {
    /// A message, or part of it, is whole.
    Finish {
        ack: Option<Psn>,
        received: Option<Box<(Receive, Wc, bool)>>,
    },
    /// Data is to be sent, packet by packet.
    Read {
        psn: Psn,
        target: Target,
        sent: u32,
        packets: u32,
        is_repeated: bool,
    },
    Atomic {
        psn: Psn,
        addr: u64,
        rkey: u32,
        op: AtomicOp,
    },
    /// The answer to an atomic that was executed.
    AtomicAgain {
        psn: Psn,
    },
    /// A packet is missing.
    Refuse {
        psn: Psn,
        nak: Nak,
    },
    NotReady {
        psn: Psn,
    },
    /// A request cannot be executed: the pair fails.
    Fail {
        psn: Psn,
        failure: Box<Failure>,
    },
}

/// One thing to do, and when at the earliest.
pub(super) struct Job {
    pub(super) ready_ns: u64,
    pub(super) step: Step,
}

impl Job {
    pub(super) fn takes_resource(&self) -> bool {
        matches!(self.step, Step::Read { is_repeated: false, .. } | Step::Atomic { .. })
    }

    pub(super) fn into_receive(self) -> Option<Receive> {
        match self.step {
            Step::Finish { received, .. } => received.map(|received| received.0),
            Step::Fail { failure, .. } => failure.receive.map(|(receive, _)| receive),
            _ => None,
        }
    }
}

impl Qp {
    pub(super) fn schedule(&mut self, state: &mut State, at_ns: u64) {
        if !std::mem::replace(&mut self.responder.is_scheduled, true) {
            state.at(at_ns, Event::Respond { qp: self.id, life: self.life });
        }
    }

    /// Does what is ready.
    pub(crate) fn respond(&mut self, state: &mut State, life: u64) {
        if self.life != life {
            return;
        }
        self.responder.is_scheduled = false;
        let mut has_done_any = false;
        while let Some(job) = self.responder.jobs.pop_front() {
            // What lands at the same time lands before: events of that come first, if this one's comes after them.
            let is_behind_payload = job.ready_ns == state.now_ns && has_done_any;
            has_done_any = true;
            if job.ready_ns > state.now_ns || is_behind_payload {
                let ready_ns = job.ready_ns;
                self.responder.jobs.push_front(job);
                self.schedule(state, ready_ns);
                return;
            }
            if let Step::Read { psn, target, sent, packets, is_repeated } = job.step {
                if !self.send_read_packet(state, psn, target, sent) {
                    return;
                }
                if sent + 1 < packets {
                    let ready_ns = state.now_ns + state.params.packet_gap_ns;
                    let step = Step::Read { psn, target, sent: sent + 1, packets, is_repeated };
                    self.responder.jobs.push_front(Job { ready_ns, step });
                }
                continue;
            }
            self.execute(state, job.step);
            if self.life != life {
                return;
            }
        }
    }

    fn execute(&mut self, state: &mut State, step: Step) {
        match step {
            Step::Finish { ack, received } => {
                if let Some((_, wc, is_solicited)) = received.map(|received| *received) {
                    self.tell_received(state, wc, is_solicited);
                }
                if let Some(psn) = ack {
                    self.send_to_peer(state, psn, Body::Ack);
                }
            }
            Step::Atomic { psn, addr, rkey, op } => self.execute_atomic(state, psn, (addr, rkey), op),
            Step::AtomicAgain { psn } => {
                let old = self.responder.remembered.iter().find_map(|known| match known {
                    Remembered::Atomic { psn: of, old } if *of == psn => *old,
                    _ => None,
                });
                if let Some(old) = old {
                    self.send_to_peer(state, psn, Body::AtomicResponse(old));
                }
            }
            Step::Refuse { psn, nak } => self.send_to_peer(state, psn, Body::Nak(nak)),
            Step::NotReady { psn } => {
                self.send_to_peer(state, psn, Body::NotReady(self.settings.rnr_timer));
            }
            Step::Fail { psn, failure } => self.fail_request(state, psn, *failure),
            Step::Read { .. } => unreachable!("READs are answered packet by packet"),
        }
    }

    /// Sends one packet of a READ's data, as memory is now. Returns whether it could.
    fn send_read_packet(&mut self, state: &mut State, psn: Psn, target: Target, sent: u32) -> bool {
        let offset = u64::from(sent) * self.mtu_bytes();
        let len = (target.len - offset).min(self.mtu_bytes());
        let mut payload = Vec::new();
        if len > 0 {
            let here = (target.addr.wrapping_add(offset), len);
            let Some(from) = state.admit(self.domain(), target.rkey, here, Access::REMOTE_READ) else {
                self.fail_request(state, psn.plus(sent), Failure::of_request(Nak::RemoteAccess));
                return false;
            };
            payload = state.fetch(from);
        }
        self.send_to_peer(state, psn.plus(sent), Body::ReadResponse(payload));
        true
    }

    fn execute_atomic(&mut self, state: &mut State, psn: Psn, (addr, rkey): (u64, u32), op: AtomicOp) {
        let Some(place) = state.admit(self.domain(), rkey, (addr, 8), Access::REMOTE_ATOMIC) else {
            self.fail_request(state, psn, Failure::of_request(Nak::RemoteAccess));
            return;
        };
        let bytes = state.fetch(place);
        let old = u64::from_ne_bytes(bytes.try_into().expect("eight bytes were admitted"));
        state.note(What::Atomic, [u64::from(self.num), psn.number(), old, op.apply(old)]);
        state.store(place, &op.apply(old).to_ne_bytes());
        for known in &mut self.responder.remembered {
            if let Remembered::Atomic { psn: of, old: result } = known
                && *of == psn
            {
                *result = Some(old);
            }
        }
        self.send_to_peer(state, psn, Body::AtomicResponse(old));
    }

    /// Tells the requester, the receive that was taken and the owner of the pair, and fails.
    fn fail_request(&mut self, state: &mut State, psn: Psn, failure: Failure) {
        self.send_to_peer(state, psn, Body::Nak(failure.nak));
        let has_receive = failure.receive.is_some();
        if let Some((receive, status)) = failure.receive {
            self.fail_receive(state, &receive, status);
        }
        let kind = match failure.nak {
            Nak::RemoteAccess => Some(AsyncEventKind::QpAccessErr),
            Nak::InvalidRequest if !has_receive => Some(AsyncEventKind::QpReqErr),
            _ => None,
        };
        if let Some(kind) = kind {
            state.async_event(self.context, kind, self.num);
        }
        self.enter_error(state);
    }
}

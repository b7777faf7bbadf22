//! Steps that a responder performs in order after placing payload: completions, READs, atomics, acknowledgements.

use farcall_verbs::{AsyncEventKind, QpType, Wc, WcStatus};

use super::Qp;
use super::responder::{Executed, Receive};
use crate::adapter::{AccessDenied, AccessOutcome, Adapter, Event, Payload, Token};
use crate::packet::{Aeth, AtomicEth, Nak, Operation, Reth, Segment, Syndrome};
use crate::psn::Psn;

/// Refusal of a request, and the completion of the receive that it consumed.
pub(super) struct Failure<R> {
    pub(super) nak: Nak,
    pub(super) receive: Option<(Receive<R>, WcStatus)>,
}

impl<R> Failure<R> {
    pub(super) const fn of_request(nak: Nak) -> Self {
        Self { nak, receive: None }
    }

    pub(super) const fn of_receive(nak: Nak, receive: Receive<R>, status: WcStatus) -> Self {
        Self { nak, receive: Some((receive, status)) }
    }
}

/// A receive that a message has filled.
pub(super) struct Received<R> {
    pub(super) receive: R,
    pub(super) wc: Wc,
    pub(super) is_solicited: bool,
}

/// One step of the responder.
pub(super) enum Reply<R> {
    /// A message, or part of it, has been placed.
    Done { is_acknowledged: bool, received: Option<Received<R>> },
    /// Data must be sent, packet by packet.
    Read { target: Reth, sent: u32, packets: u32, is_repeated: bool },
    /// An executed READ was repeated, but its region no longer exists. A requester that still waits for the data
    /// receives a NAK. The queue pair does not fail, since the request may also be an old duplicate of a completed one.
    RepeatedReadRefused,
    /// An atomic must be executed.
    Atomic(AtomicEth),
    /// The response to an executed atomic.
    AtomicAnswer { is_repeated: bool },
    /// A packet is missing.
    SequenceNak,
    /// No receive is posted.
    RnrNak,
    /// The request cannot be executed: the queue pair fails.
    Fail(Failure<R>),
}

/// A reply in its queue.
pub(super) struct QueuedReply<R> {
    /// The last access that must have ended before this reply.
    after: Token,
    psn: Psn,
    msn: u32,
    reply: Reply<R>,
}

impl<R> QueuedReply<R> {
    /// Returns whether it is a READ or atomic that occupies responder resources.
    pub(super) fn takes_resource(&self) -> bool {
        matches!(
            self.reply,
            Reply::Read { is_repeated: false, .. }
                | Reply::Atomic(_)
                | Reply::AtomicAnswer { is_repeated: false }
        )
    }

    /// Returns whether it is a repeated READ that was prepared with this token.
    fn is_repeated_read(&self, token: Token) -> bool {
        let Reply::Read { target, is_repeated, .. } = &self.reply else { return false };
        *is_repeated && target.len_bytes > 0 && self.after == token
    }

    pub(super) fn into_receive(self) -> Option<R> {
        match self.reply {
            Reply::Done { received, .. } => received.map(|received| received.receive),
            Reply::Fail(failure) => failure.receive.map(|((receive, _), _)| receive),
            _ => None,
        }
    }
}

/// Result of [`Qp::respond`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responded {
    /// Nothing was done: no request waits for a response, or the memory access or the pacing of the first one is not
    /// ready.
    Nothing,
    /// A request was responded to, or ended without a response; there may be more to do.
    Done,
    /// One data packet of a READ was sent; more follow.
    ReadContinues,
}

impl<S, R> Qp<S, R> {
    /// Queues a reply after all accesses that have begun.
    pub(super) fn reply(&mut self, psn: Psn, reply: Reply<R>) {
        let (after, msn) = (self.responder.last_token(), self.responder.msn);
        self.responder.replies.push_back(QueuedReply { after, psn, msn, reply });
    }

    /// Records the outcome of a pending access; for an atomic, the old value. Tokens of accesses that an error or reset
    /// has ended are ignored. The caller should call [`Qp::respond`] afterwards.
    pub fn accessed(&mut self, token: Token, outcome: Result<u64, AccessDenied>) {
        let responder = &mut self.responder;
        let Some(at) = responder.pending.iter().position(|pending| *pending == token) else { return };
        responder.pending.remove(at);
        match outcome {
            Ok(old) => self.store_old_value(token, old),
            Err(AccessDenied) => {
                let repeated = responder.replies.iter_mut().find(|waiting| waiting.is_repeated_read(token));
                match repeated {
                    Some(read) => read.reply = Reply::RepeatedReadRefused,
                    None => {
                        let first = responder.refused.map_or(token, |earlier| earlier.min(token));
                        responder.refused = Some(first);
                    }
                }
            }
        }
    }

    /// Stores the old value of an atomic, for its response and for repeated requests.
    fn store_old_value(&mut self, token: Token, found: u64) {
        for known in &mut self.responder.executed {
            if let Executed::Atomic { token: of, old, .. } = known
                && *of == token
            {
                *old = Some(found);
            }
        }
    }

    /// Performs the next reply, if the accesses before it have ended.
    pub fn respond(&mut self, adapter: &mut impl Adapter<S, R>) -> Responded {
        let Some(first) = self.responder.replies.front() else { return Responded::Nothing };
        if self.responder.pending.front().is_some_and(|pending| *pending <= first.after) {
            return Responded::Nothing;
        }
        let is_refused = self.responder.refused.is_some_and(|refused| refused <= first.after);
        if matches!(first.reply, Reply::Read { .. }) && !self.is_due(adapter) {
            return Responded::Nothing;
        }
        let Some(QueuedReply { after, psn, msn, reply }) = self.responder.replies.pop_front() else {
            return Responded::Nothing;
        };
        if is_refused {
            self.fail_request(adapter, psn, late_denial(reply));
            return Responded::Done;
        }
        let acknowledge = |syndrome| Operation::Acknowledge(Aeth { syndrome, msn });
        match reply {
            Reply::Done { is_acknowledged, received } => {
                if let Some(Received { receive, wc, is_solicited }) = received {
                    adapter.received(receive, wc, is_solicited);
                }
                // One acknowledgement for all requests received so far (IBA 9.7.5.1.2).
                if is_acknowledged && !self.is_next_ack() {
                    self.send_empty(adapter, psn, acknowledge(Syndrome::Ack));
                }
            }
            Reply::Read { target, sent, packets, is_repeated } => {
                let is_sent = self.send_read_packet(adapter, psn, msn, (target, sent, packets));
                if is_sent && sent + 1 < packets {
                    let reply = Reply::Read { target, sent: sent + 1, packets, is_repeated };
                    self.responder.replies.push_front(QueuedReply { after, psn, msn, reply });
                    return Responded::ReadContinues;
                }
                let at = psn.plus(sent);
                if !is_sent && is_repeated {
                    self.send_empty(adapter, at, acknowledge(Syndrome::Nak(Nak::RemoteAccess)));
                } else if !is_sent {
                    self.fail_request(adapter, at, Failure::of_request(Nak::RemoteAccess));
                }
            }
            Reply::RepeatedReadRefused => {
                self.send_empty(adapter, psn, acknowledge(Syndrome::Nak(Nak::RemoteAccess)));
            }
            Reply::Atomic(target) => self.execute_atomic(adapter, psn, msn, &target),
            Reply::AtomicAnswer { .. } => self.respond_to_atomic(adapter, psn, msn),
            Reply::SequenceNak => {
                self.send_empty(adapter, psn, acknowledge(Syndrome::Nak(Nak::PsnSequence)));
            }
            Reply::RnrNak => {
                self.send_empty(adapter, psn, acknowledge(Syndrome::Rnr(self.settings.rnr_timer)));
            }
            Reply::Fail(failure) => self.fail_request(adapter, psn, failure),
        }
        Responded::Done
    }

    /// Returns whether the next reply is an acknowledgement too, and can be sent without waiting.
    fn is_next_ack(&self) -> bool {
        let responder = &self.responder;
        responder.replies.front().is_some_and(|next| {
            matches!(next.reply, Reply::Done { is_acknowledged: true, .. })
                && responder.pending.front().is_none_or(|pending| *pending > next.after)
        })
    }

    /// Sends one data packet of a READ with the present contents of memory. Returns whether that was permitted.
    fn send_read_packet(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        first: Psn,
        msn: u32,
        (target, sent, packets): (Reth, u32, u32),
    ) -> bool {
        let offset = u64::from(sent) * self.mtu_bytes();
        let len_bytes = (u64::from(target.len_bytes) - offset).min(self.mtu_bytes()) as u32;
        let segment = Segment::new(sent == 0, sent + 1 == packets);
        let aeth = (segment != Segment::Middle).then_some(Aeth { syndrome: Syndrome::Ack, msn });
        let packet = self.packet(first.plus(sent), Operation::ReadResponse(segment, aeth));
        let here = Reth { addr: target.addr.wrapping_add(offset), len_bytes, ..target };
        let payload = if len_bytes == 0 { Payload::None } else { Payload::Region(here) };
        let is_sent = adapter.transmit(packet, payload).is_ok();
        if is_sent {
            self.count_sent(adapter, len_bytes.into());
        }
        is_sent
    }

    fn execute_atomic(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, msn: u32, target: &AtomicEth) {
        let token = self.responder.executed.iter().find_map(|known| match known {
            Executed::Atomic { psn: of, token, .. } if *of == psn => Some(*token),
            _ => None,
        });
        let Some(token) = token else { return };
        match adapter.atomic(token, target) {
            AccessOutcome::Done(old) => {
                self.store_old_value(token, old);
                self.respond_to_atomic(adapter, psn, msn);
            }
            AccessOutcome::Denied => self.fail_request(adapter, psn, Failure::of_request(Nak::RemoteAccess)),
            AccessOutcome::Pending => {
                // Accesses that began before it have ended, so it is the first of those in progress.
                self.responder.pending.push_front(token);
                let reply = Reply::AtomicAnswer { is_repeated: false };
                self.responder.replies.push_front(QueuedReply { after: token, psn, msn, reply });
            }
        }
    }

    fn respond_to_atomic(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, msn: u32) {
        let old = self.responder.executed.iter().find_map(|known| match known {
            Executed::Atomic { psn: of, old, .. } if *of == psn => *old,
            _ => None,
        });
        if let Some(old) = old {
            let aeth = Aeth { syndrome: Syndrome::Ack, msn };
            self.send_empty(adapter, psn, Operation::AtomicAcknowledge(aeth, old));
        }
    }

    /// Queues the completion of a receive after the accesses and completions before it, if there are any.
    pub(super) fn received_after(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        accessed: AccessOutcome,
        token: Token,
        received: Received<R>,
    ) {
        if accessed == AccessOutcome::Pending {
            self.responder.pending.push_back(token);
        } else if self.responder.replies.is_empty() {
            adapter.received(received.receive, received.wc, received.is_solicited);
            return;
        }
        let done = Reply::Done { is_acknowledged: false, received: Some(received) };
        self.reply(Psn::default(), done);
    }

    /// Notifies the requester, completes the consumed receive, raises the event, and fails the queue pair.
    fn fail_request(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, failure: Failure<R>) {
        if self.config.transport == QpType::Rc {
            let aeth = Aeth { syndrome: Syndrome::Nak(failure.nak), msn: self.responder.msn };
            self.send_empty(adapter, psn, Operation::Acknowledge(aeth));
            self.responder.last_refusal = Some((psn, failure.nak));
        }
        let has_receive = failure.receive.is_some();
        if let Some(((receive, _), status)) = failure.receive {
            self.fail_receive(adapter, receive, status);
        }
        let kind = match failure.nak {
            Nak::RemoteAccess => Some(AsyncEventKind::QpAccessErr),
            Nak::InvalidRequest if !has_receive => Some(AsyncEventKind::QpReqErr),
            _ => None,
        };
        if let Some(kind) = kind {
            adapter.event(Event::Async(kind));
        }
        self.enter_error(adapter);
    }
}

/// Returns the failure of a reply whose access was refused after it had begun.
fn late_denial<R>(reply: Reply<R>) -> Failure<R> {
    match reply {
        Reply::Done { received: Some(received), .. } => {
            Failure::of_receive(Nak::RemoteOperation, (received.receive, 0), WcStatus::LOC_PROT_ERR)
        }
        Reply::Fail(failure) => failure,
        _ => Failure::of_request(Nak::RemoteAccess),
    }
}

//! The one set of checks of posted work requests, for providers: what is refused before it is queued.
//!
//! A provider keeps [`SendRules`] and [`RecvRules`] beside each queue. A check is a few compares in the caller's code;
//! the reason of a refusal is worked out only then, out of line. What depends on memory (keys, bounds, permissions) is
//! the provider's, as are the room in its queue and the address handles of datagrams.

use crate::{Error, QpCap, QpState, QpType, RecvWr, Result, SendFlags, SendWr, WrOpcode};

/// Bytes of the operand and the result of an atomic.
pub const ATOMIC_BYTES: u64 = 8;

/// Bytes of the longest message (IBA 9.7.2: 2^31).
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// What the requests of one send queue must keep to. Fixed when the queue pair is made.
#[derive(Clone, Copy, Debug)]
pub struct SendRules {
    /// The opcodes without atomics are consecutive numbers: the first, and how many follow it.
    first_opcode: u32,
    following_opcodes: u32,
    max_wr: u32,
    max_sge: u32,
    max_inline_data: u32,
    qp_type: QpType,
    provider: &'static str,
}

impl SendRules {
    /// The rules of a transport (IBA table 38) with the sizes that a queue pair was given. `provider` is named in
    /// errors.
    pub const fn new(provider: &'static str, qp_type: QpType, cap: &QpCap) -> Self {
        let (first, last) = match qp_type {
            QpType::Rc => (WrOpcode::WRITE, WrOpcode::READ),
            QpType::Uc => (WrOpcode::WRITE, WrOpcode::SEND_WITH_IMM),
            QpType::Ud => (WrOpcode::SEND, WrOpcode::SEND_WITH_IMM),
        };
        Self {
            first_opcode: first.0,
            following_opcodes: last.0 - first.0,
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline_data: cap.max_inline_data,
            qp_type,
            provider,
        }
    }

    /// Checks a request when `queued` requests hold a place in the queue; returns its length in bytes.
    ///
    /// # Errors
    /// The queue is full, or the request's opcode, flags, number of elements, length or inline data break a rule.
    #[inline]
    pub fn check(&self, wr: &SendWr<'_>, queued: usize) -> Result<u64> {
        let len_bytes = wr.len_bytes();
        let is_plain = wr.opcode.0.wrapping_sub(self.first_opcode) <= self.following_opcodes;
        let is_within = queued < self.max_wr as usize
            // Flags of foreign programs that mean nothing here lie above those that do.
            && wr.send_flags.bits() <= SendFlags::all().bits()
            && wr.sges().len() <= self.max_sge as usize
            && len_bytes <= MAX_MESSAGE_BYTES
            && !(wr.send_flags.contains(SendFlags::INLINE)
                && (len_bytes > self.max_inline_data.into() || wr.opcode.returns_data()));
        if is_plain && is_within { Ok(len_bytes) } else { self.check_atomic(wr, queued, is_within) }
    }

    /// The rest of `check`: atomics, and why it refuses.
    #[inline(never)]
    fn check_atomic(&self, wr: &SendWr<'_>, queued: usize, is_within: bool) -> Result<u64> {
        if is_within && self.has_atomic(wr.opcode) && wr.len_bytes() >= ATOMIC_BYTES {
            return Ok(wr.len_bytes());
        }
        Err(self.refuse(wr, queued))
    }

    fn has_atomic(&self, opcode: WrOpcode) -> bool {
        matches!(self.qp_type, QpType::Rc) && opcode.is_atomic()
    }

    #[cold]
    fn refuse(&self, wr: &SendWr<'_>, queued: usize) -> Error {
        const OP: &str = "post_send";
        let unsupported = |what| Error::Unsupported { operation: OP, provider: self.provider, what };
        let (len_bytes, is_inline) = (wr.len_bytes(), wr.send_flags.contains(SendFlags::INLINE));
        if queued >= self.max_wr as usize {
            return Error::Exhausted {
                operation: OP,
                what: "places in the send queue",
                limit: self.max_wr.into(),
                remedy: "poll the completion queue, or create the queue pair with a larger max_send_wr",
            };
        }
        let (flags, known) = (wr.send_flags.bits(), SendFlags::all().bits());
        if flags > known {
            return unsupported(format!("send flags {flags:#x}; there are {known:#x}"));
        }
        let is_plain = wr.opcode.0.wrapping_sub(self.first_opcode) <= self.following_opcodes;
        if !is_plain && !self.has_atomic(wr.opcode) {
            return unsupported(format!("opcode {} over {:?}", wr.opcode.0, self.qp_type));
        }
        let what = if wr.sges().len() > self.max_sge as usize {
            format!("{} elements; max_send_sge is {}", wr.sges().len(), self.max_sge)
        } else if len_bytes > MAX_MESSAGE_BYTES {
            format!("{len_bytes} bytes; a message has at most {MAX_MESSAGE_BYTES}")
        } else if is_inline && wr.opcode.returns_data() {
            "what brings data back (READ, atomics) cannot be inline".into()
        } else if is_inline {
            format!("{len_bytes} inline bytes; max_inline_data is {}", self.max_inline_data)
        } else {
            format!("an atomic's elements hold {len_bytes} bytes; its result has {ATOMIC_BYTES}")
        };
        Error::invalid(OP, what)
    }
}

/// What the requests of one receive queue, a queue pair's own or a shared one, must keep to.
#[derive(Clone, Copy, Debug)]
pub struct RecvRules {
    max_wr: u32,
    /// One more than the elements of the longest list; 0 if there is no list that it takes.
    sge_end: u32,
    queue: RecvQueueKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecvQueueKind {
    OfPair,
    /// The pair takes its receives from a shared queue.
    NoneOfPair,
    Shared,
}

impl RecvRules {
    /// The rules of a queue pair's receives; with a shared receive queue, every receive posted to the pair is refused.
    pub const fn of_pair(cap: &QpCap, has_srq: bool) -> Self {
        if has_srq {
            return Self { max_wr: 0, sge_end: 0, queue: RecvQueueKind::NoneOfPair };
        }
        Self { max_wr: cap.max_recv_wr, sge_end: cap.max_recv_sge + 1, queue: RecvQueueKind::OfPair }
    }

    /// The rules of a shared receive queue.
    pub const fn of_srq(max_wr: u32, max_sge: u32) -> Self {
        Self { max_wr, sge_end: max_sge + 1, queue: RecvQueueKind::Shared }
    }

    /// Checks a receive; `has_room`: the queue has a place for it.
    ///
    /// # Errors
    /// The queue is full or not this one, or the list of elements is too long.
    #[inline]
    pub fn check(&self, wr: &RecvWr<'_>, has_room: bool) -> Result<()> {
        if has_room && wr.sges().len() < self.sge_end as usize { Ok(()) } else { Err(self.refuse(wr)) }
    }

    #[cold]
    fn refuse(&self, wr: &RecvWr<'_>) -> Error {
        let operation = self.operation();
        let count = wr.sges().len();
        if self.queue == RecvQueueKind::NoneOfPair {
            let what = "the queue pair's receives are shared: post to the shared receive queue";
            return Error::invalid(operation, what);
        }
        if count >= self.sge_end as usize {
            let name = if self.queue == RecvQueueKind::Shared { "max_sge" } else { "max_recv_sge" };
            return Error::invalid(operation, format!("{count} elements; {name} is {}", self.sge_end - 1));
        }
        let (what, remedy) = match self.queue {
            RecvQueueKind::Shared => (
                "places in the shared receive queue",
                "poll the completion queues of its queue pairs, or modify it to a larger max_wr",
            ),
            _ => (
                "places in the receive queue",
                "poll the completion queue, or create the queue pair with a larger max_recv_wr",
            ),
        };
        Error::Exhausted { operation, what, limit: self.max_wr.into(), remedy }
    }

    fn operation(&self) -> &'static str {
        if self.queue == RecvQueueKind::Shared { "post_srq_recv" } else { "post_recv" }
    }
}

impl QpState {
    /// Checks that sends may be posted (IBA 10.8.2).
    ///
    /// # Errors
    /// Before RTS.
    #[inline]
    pub fn check_sends(self, qp_num: u32) -> Result<()> {
        if self.accepts_sends() { Ok(()) } else { Err(self.refuse("post_send", qp_num)) }
    }

    /// Checks that receives may be posted (IBA 10.8.3).
    ///
    /// # Errors
    /// In RESET.
    #[inline]
    pub fn check_receives(self, qp_num: u32) -> Result<()> {
        if self.accepts_receives() { Ok(()) } else { Err(self.refuse("post_recv", qp_num)) }
    }

    #[cold]
    fn refuse(self, operation: &'static str, qp_num: u32) -> Error {
        let remedy = match operation {
            "post_send" => "bring the queue pair to RTS first",
            _ => "bring the queue pair to INIT first",
        };
        let object = format!("queue pair {qp_num:#x}");
        Error::InvalidState { operation, object, state: self.to_string(), remedy }
    }
}

//! Checks of posted work requests, shared by all providers: requests that are refused before they are queued.
//!
//! A provider stores [`SendRules`] and [`RecvRules`] next to each queue. A check is a few comparisons, inlined into the
//! caller; the reason of a refusal is determined out of line. The provider itself checks keys, bounds and permissions
//! of memory, free space in its queue, and address handles of datagrams. It also fails READ and atomics over UC: like
//! RNICs (mlx5), it accepts them and completes them with `LOC_QP_OP_ERR`.

use crate::{Error, QpCap, QpState, QpType, RecvWr, Result, SendFlags, SendWr, WrOpcode};

/// Length in bytes of the operand and of the result of an atomic.
pub const ATOMIC_BYTES: u64 = 8;

/// Maximum length of a message in bytes (IBA 9.7.2: 2^31).
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Limits on the requests of one send queue, fixed when the queue pair is created.
#[derive(Clone, Copy, Debug)]
pub struct SendRules {
    /// The opcodes without atomics are consecutive numbers: the first one, and the number of those that follow.
    first_opcode: u32,
    following_opcodes: u32,
    max_wr: u32,
    max_sge: u32,
    max_inline_data: u32,
    qp_type: QpType,
    provider: &'static str,
}

impl SendRules {
    /// Returns the rules of a transport (IBA table 38) with the sizes of the created queue pair. Errors name
    /// `provider`.
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

    /// Checks a request while `queued` requests occupy slots of the queue. Returns the request's length in bytes.
    ///
    /// # Errors
    /// Returns an error if the queue is full, or if the request's opcode, flags, number of elements, length or inline
    /// data break a rule.
    #[inline]
    pub fn check(&self, wr: &SendWr<'_>, queued: usize) -> Result<u64> {
        let len_bytes = wr.len_bytes();
        let is_plain = wr.opcode.0.wrapping_sub(self.first_opcode) <= self.following_opcodes;
        let is_within = queued < self.max_wr as usize
            // Flags that this vocabulary does not define have higher bit values than all flags that it defines.
            && wr.send_flags.bits() <= SendFlags::all().bits()
            && wr.sges().len() <= self.max_sge as usize
            && len_bytes <= MAX_MESSAGE_BYTES
            && !(wr.send_flags.contains(SendFlags::INLINE)
                && (len_bytes > self.max_inline_data.into() || wr.opcode.returns_data()));
        if is_plain && is_within { Ok(len_bytes) } else { self.check_atomic(wr, queued, is_within) }
    }

    /// Completes `check` out of line: accepts atomics, and operations that complete with an error because the transport
    /// does not define them; determines the reason of a refusal.
    #[inline(never)]
    fn check_atomic(&self, wr: &SendWr<'_>, queued: usize, is_within: bool) -> Result<u64> {
        let is_atomic = self.has_atomic(wr.opcode) && wr.len_bytes() >= ATOMIC_BYTES;
        let is_undefined = matches!(self.qp_type, QpType::Uc) && wr.opcode.returns_data();
        if is_within && (is_atomic || is_undefined) {
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
        let is_undefined = matches!(self.qp_type, QpType::Uc) && wr.opcode.returns_data();
        if !is_plain && !self.has_atomic(wr.opcode) && !is_undefined {
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

/// Limits on the requests of one receive queue, a queue pair's own or a shared one.
#[derive(Clone, Copy, Debug)]
pub struct RecvRules {
    max_wr: u32,
    /// Maximum number of elements plus one; 0 if the queue accepts no request.
    sge_end: u32,
    queue: RecvQueueKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecvQueueKind {
    OfPair,
    /// The queue pair uses a shared receive queue.
    NoneOfPair,
    Shared,
}

impl RecvRules {
    /// Returns the rules of a queue pair's receives. With a shared receive queue, every receive posted to the queue
    /// pair is refused.
    pub const fn of_pair(cap: &QpCap, has_srq: bool) -> Self {
        if has_srq {
            return Self { max_wr: 0, sge_end: 0, queue: RecvQueueKind::NoneOfPair };
        }
        Self { max_wr: cap.max_recv_wr, sge_end: cap.max_recv_sge + 1, queue: RecvQueueKind::OfPair }
    }

    /// Returns the rules of a shared receive queue.
    pub const fn of_srq(max_wr: u32, max_sge: u32) -> Self {
        Self { max_wr, sge_end: max_sge + 1, queue: RecvQueueKind::Shared }
    }

    /// Checks a receive. `has_room` is whether the queue has a free slot.
    ///
    /// # Errors
    /// Returns an error if the queue is full, if receives belong to a shared receive queue instead, or if the list of
    /// elements is too long.
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
    /// Returns [`Error::InvalidState`] before RTS.
    #[inline]
    pub fn check_sends(self, qp_num: u32) -> Result<()> {
        if self.accepts_sends() { Ok(()) } else { Err(self.refuse("post_send", qp_num)) }
    }

    /// Checks that receives may be posted (IBA 10.8.3).
    ///
    /// # Errors
    /// Returns [`Error::InvalidState`] in RESET.
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

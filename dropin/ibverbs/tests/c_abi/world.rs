//! The objects that a sequence has created, and their expected state by the specification: the reference model.

use std::collections::VecDeque;
use std::ffi::c_int;

use farcall_layout::{Ah, CompChannel, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpCap, Srq};

use crate::library::{Library, device};

/// A small generator, so that a seed has the same meaning in every version (SplitMix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        (!among.is_empty()).then(|| among[self.below(among.len())])
    }

    /// Like `pick`, for non-empty lists.
    pub fn of<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

pub struct ContextModel {
    pub ptr: *mut Context,
    pub open: bool,
}

pub struct PdModel {
    pub ptr: *mut Pd,
    pub ctx: usize,
    pub live: bool,
}

pub struct MrModel {
    pub ptr: *mut Mr,
    pub pd: usize,
    pub live: bool,
    pub access: u32,
    pub addr: u64,
    pub len: u64,
    pub lkey: u32,
    pub rkey: u32,
    /// Each slot is returned only once.
    pub cursor: u64,
}

pub struct ChannelModel {
    pub ptr: *mut CompChannel,
    pub ctx: usize,
    pub live: bool,
}

pub struct CqModel {
    pub ptr: *mut Cq,
    pub ctx: usize,
    pub channel: Option<usize>,
    pub extended: bool,
    pub live: bool,
    pub armed: bool,
    /// A completion arrived after it was armed, so there must be an event.
    pub must_event: bool,
}

pub struct SrqModel {
    pub ptr: *mut Srq,
    pub pd: usize,
    pub live: bool,
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
    pub posted: Vec<RecvRecord>,
    /// Number of receives consumed by messages whose completions are not polled yet.
    pub claimed: usize,
    /// Its exact contents are unknown.
    pub loose: bool,
}

pub struct AhModel {
    pub ptr: *mut Ah,
    pub pd: usize,
    pub live: bool,
}

/// A receive that is posted.
#[derive(Clone)]
pub struct RecvRecord {
    pub wr_id: u64,
    pub addr: u64,
    pub len: u64,
}

/// The operation of a send, as far as its outcome depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

/// A send that was posted and has not been executed.
#[derive(Clone)]
pub struct SendRecord {
    pub wr_id: u64,
    pub seq: u64,
    pub action: Action,
    pub imm: Option<u32>,
    pub signaled: bool,
    pub len: u64,
    pub pattern: u8,
    /// Statuses with which it must complete, if it is not valid.
    pub bad: Option<&'static [u32]>,
    /// Expected contents of memory afterwards.
    pub effect: Option<Effect>,
}

/// Expected bytes after an operation.
#[derive(Clone, Copy)]
pub enum Effect {
    Bytes { addr: u64, len: u64, pattern: u8 },
    Words { result_at: u64, result: u64, target_at: u64, target: u64 },
}

/// An expected completion.
#[derive(Clone)]
pub struct Done {
    pub wr_id: Option<u64>,
    pub seq: u64,
    /// `true` if it must arrive; otherwise it may.
    pub must: bool,
    /// The request may wait for the other end or the owner of its memory, and is then executed when the initiator
    /// polls.
    pub late: bool,
    /// No armed queue has raised an event for it yet.
    pub fresh: bool,
    /// Allowed statuses; any status if empty.
    pub statuses: &'static [u32],
    pub opcode: u32,
    pub byte_len: Option<u64>,
    /// The sender.
    pub src_qp: u32,
    pub imm: Option<u32>,
    pub pattern: Option<u8>,
    pub effect: Option<Effect>,
    /// The receive's buffer, unless it belongs to a shared queue.
    pub buffer: Option<(u64, u64)>,
}

pub struct QpModel {
    pub ptr: *mut Qp,
    pub extended: bool,
    pub ctx: usize,
    pub pd: usize,
    pub send_cq: usize,
    pub recv_cq: usize,
    pub srq: Option<usize>,
    pub qp_type: u32,
    pub qp_num: u32,
    pub cap: QpCap,
    pub signal_all: bool,
    pub live: bool,
    pub state: u32,
    pub attr: QpAttr,
    /// The connected pair, while no error has occurred.
    pub link: Option<usize>,
    /// The pair that it was connected to, which may not be connected to it.
    pub dest: u32,
    /// Events have occurred whose consequences have no determined time; only invariants are checked.
    pub loose: bool,
    pub sends: VecDeque<SendRecord>,
    pub recvs: VecDeque<RecvRecord>,
    pub send_done: VecDeque<Done>,
    pub recv_done: VecDeque<Done>,
    /// From before the last reset: devices differ in whether earlier completions are still found.
    pub stale: Vec<u64>,
    /// Datagrams wait for a slow receiver, and later ones behind them.
    pub lags: bool,
    /// Datagrams were sent to it that it could not receive at once: they are lost or late, or arrive in its next
    /// incarnation.
    pub early: bool,
    pub posted_sends: u64,
    pub retired_sends: u64,
}

pub const RC: u32 = 2;
pub const UC: u32 = 3;
pub const UD: u32 = 4;

pub mod state {
    pub const RESET: u32 = 0;
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const SQD: u32 = 4;
    pub const SQE: u32 = 5;
    pub const ERR: u32 = 6;
}

/// `ibv_wc_status`.
pub mod status {
    pub const SUCCESS: &[u32] = &[0];
    pub const LOC_PROT: &[u32] = &[4];
    pub const LOC_QP_OP: &[u32] = &[2];
    pub const FLUSH: &[u32] = &[5];
    pub const REM_ACCESS: &[u32] = &[10];
    /// The pair does not accept such requests at all: RNICs, and interpretations of the specification, differ.
    pub const NOT_ACCEPTED: &[u32] = &[9, 10];
    pub const ANY: &[u32] = &[];
}

/// Marks the `wr_id` of a receive.
pub const RECEIVE: u64 = 1 << 63;

pub struct World {
    pub library: &'static Library,
    pub device: *mut Device,
    pub log: Vec<String>,
    /// Every call is printed at once, because the process may not survive it.
    pub aloud: bool,
    pub ctxs: Vec<ContextModel>,
    pub pds: Vec<PdModel>,
    pub mrs: Vec<MrModel>,
    pub channels: Vec<ChannelModel>,
    pub cqs: Vec<CqModel>,
    pub srqs: Vec<SrqModel>,
    pub qps: Vec<QpModel>,
    pub ahs: Vec<AhModel>,
    pub memory: Vec<Box<[u8]>>,
    pub next_wr: u64,
    /// A request fails: its outcome is checked before any other request can fail.
    pub has_failed: bool,
    /// Limit events of shared receive queues that must occur.
    pub limits_due: Vec<usize>,
}

/// Indices of live objects.
macro_rules! live {
    ($($name:ident of $field:ident;)*) => {
        $(pub fn $name(&self) -> Vec<usize> {
            (0..self.$field.len()).filter(|i| self.$field[*i].live).collect()
        })*
    };
}

impl World {
    pub fn new(aloud: bool) -> Self {
        Self {
            library: Library::get(),
            device: device(),
            log: Vec::new(),
            aloud,
            ctxs: Vec::new(),
            pds: Vec::new(),
            mrs: Vec::new(),
            channels: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            memory: Vec::new(),
            next_wr: 1,
            has_failed: false,
            limits_due: Vec::new(),
        }
    }

    live! {
        live_pds of pds;
        live_mrs of mrs;
        live_channels of channels;
        live_cqs of cqs;
        live_srqs of srqs;
        live_qps of qps;
        live_ahs of ahs;
    }

    pub fn open_ctxs(&self) -> Vec<usize> {
        (0..self.ctxs.len()).filter(|i| self.ctxs[*i].open).collect()
    }

    pub fn say(&mut self, what: String) {
        if self.aloud {
            eprintln!("  {what}");
        }
        self.log.push(what);
    }

    /// Checks the result of a call against the allowed ones.
    #[track_caller]
    pub fn expect(&mut self, call: String, got: c_int, allowed: &[c_int]) {
        self.say(format!("{call} = {got}"));
        assert!(allowed.contains(&got), "{call} returned {got}, not one of {allowed:?}");
    }

    pub fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// Returns the pair that is connected with `qp`, if the connection is mutual.
    pub fn partner(&self, qp: usize) -> Option<usize> {
        self.qps[qp].link.filter(|other| self.qps[*other].link == Some(qp))
    }

    /// Reduces the checks to invariants: the order of completions, and that each belongs to a posted request.
    pub fn loosen(&mut self, qp: usize) {
        self.loosen_alone(qp);
        if let Some(other) = self.qps[qp].link {
            self.loosen_alone(other);
        }
    }

    fn loosen_alone(&mut self, qp: usize) {
        let is_shared = self.qps[qp].srq.is_some();
        let is_target_shared = self.qps[qp].link.is_some_and(|other| self.qps[other].srq.is_some());
        if let Some(srq) = self.qps[qp].srq {
            self.srqs[srq].loose = true;
        }
        self.excuse_events(qp);
        let pair = &mut self.qps[qp];
        pair.loose = true;
        for send in std::mem::take(&mut pair.sends) {
            pair.send_done.push_back(Done::maybe(Some(send.wr_id), send.seq));
        }
        for recv in std::mem::take(&mut pair.recvs) {
            pair.recv_done.push_back(Done::maybe(Some(recv.wr_id), 0));
        }
        // Requests that wait for a poll, or for the owner of a shared receive queue, may fail with the others.
        let receives = pair.recv_done.iter_mut().filter(|done| done.late || is_shared);
        let sends = pair.send_done.iter_mut().filter(|done| done.late || is_target_shared);
        for done in receives.chain(sends) {
            (done.must, done.statuses) = (false, status::ANY);
        }
    }

    /// Completions may not arrive any more, and therefore no event either.
    pub fn excuse_events(&mut self, qp: usize) {
        for cq in [self.qps[qp].send_cq, self.qps[qp].recv_cq] {
            self.cqs[cq].must_event = false;
        }
    }

    /// Returns whether no posted request refers to memory.
    pub fn is_idle(&self) -> bool {
        self.qps.iter().filter(|qp| qp.live).all(|qp| {
            qp.sends.is_empty() && qp.recvs.is_empty() && qp.send_done.is_empty() && qp.recv_done.is_empty()
        }) && self.srqs.iter().filter(|srq| srq.live).all(|srq| srq.posted.is_empty())
    }
}

impl Done {
    pub fn maybe(wr_id: Option<u64>, seq: u64) -> Self {
        Self { must: false, ..Self::with(wr_id, seq, status::ANY) }
    }

    pub fn with(wr_id: Option<u64>, seq: u64, statuses: &'static [u32]) -> Self {
        Self {
            wr_id,
            seq,
            must: true,
            late: false,
            fresh: true,
            statuses,
            opcode: 0,
            byte_len: None,
            src_qp: 0,
            imm: None,
            pattern: None,
            effect: None,
            buffer: None,
        }
    }
}

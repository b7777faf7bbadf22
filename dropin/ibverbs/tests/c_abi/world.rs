//! What a sequence has made so far, beside what the specification says about it: the reference model.

use std::collections::VecDeque;
use std::ffi::c_int;

use farcall_layout::{Ah, CompChannel, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpCap, Srq};

use crate::library::{Library, device};

/// A small generator of its own, so that a seed means the same for ever (SplitMix64).
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

    /// As `pick`, from what cannot be empty.
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
    /// Slots are handed out once each.
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
    /// A completion came after it was armed, so an event must be there.
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
    /// Of those, taken by messages whose completions are still to be polled.
    pub claimed: usize,
    /// What it holds is no longer known exactly.
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

/// What a send does, as far as its outcome depends on it.
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
    /// Statuses it must end in, if it is not good.
    pub bad: Option<&'static [u32]>,
    /// What must be in memory afterwards.
    pub effect: Option<Effect>,
}

/// Bytes that an operation leaves behind.
#[derive(Clone, Copy)]
pub enum Effect {
    Bytes { addr: u64, len: u64, pattern: u8 },
    Words { result_at: u64, result: u64, target_at: u64, target: u64 },
}

/// A completion to come.
#[derive(Clone)]
pub struct Done {
    pub wr_id: Option<u64>,
    pub seq: u64,
    /// It must come; otherwise it may.
    pub must: bool,
    /// The request may wait, for the other end or its memory's owner, and then is executed when the initiator polls.
    pub late: bool,
    /// No armed queue was told of it yet.
    pub fresh: bool,
    /// One of these; anything if empty.
    pub statuses: &'static [u32],
    pub opcode: u32,
    pub byte_len: Option<u64>,
    /// Who sent it.
    pub src_qp: u32,
    pub imm: Option<u32>,
    pub pattern: Option<u8>,
    pub effect: Option<Effect>,
    /// The receive's buffer, if it is not of a shared queue.
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
    /// Connected with each other, and nothing went wrong since.
    pub link: Option<usize>,
    /// Whom it was told to reach, whether or not that pair knows.
    pub dest: u32,
    /// Something happened whose consequences have no fixed time; only what must hold always is checked.
    pub loose: bool,
    pub sends: VecDeque<SendRecord>,
    pub recvs: VecDeque<RecvRecord>,
    pub send_done: VecDeque<Done>,
    pub recv_done: VecDeque<Done>,
    /// Of before the last reset: devices differ in whether completions that were there already are still found.
    pub stale: Vec<u64>,
    /// Datagrams wait for a slow receiver, and later ones behind them.
    pub lags: bool,
    /// Datagrams were sent to it that it could not take at once: they are lost or late, or come in its next life.
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
    /// The pair does not take such requests at all: RNICs differ, and so do the specification's readers.
    pub const NOT_ACCEPTED: &[u32] = &[9, 10];
    pub const ANY: &[u32] = &[];
}

/// What marks the `wr_id` of a receive.
pub const RECEIVE: u64 = 1 << 63;

pub struct World {
    pub library: &'static Library,
    pub device: *mut Device,
    pub log: Vec<String>,
    /// Every call is told at once, because the process may not survive it.
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
    /// A request fails: what it ends in is looked at before anything else can fail.
    pub has_failed: bool,
    /// Limit events of shared receive queues that must come.
    pub limits_due: Vec<usize>,
}

/// Indices of the live ones.
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

    /// The result of a call, against what it may be.
    #[track_caller]
    pub fn expect(&mut self, call: String, got: c_int, allowed: &[c_int]) {
        self.say(format!("{call} = {got}"));
        assert!(allowed.contains(&got), "{call} returned {got}, not one of {allowed:?}");
    }

    pub fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// Pairs of queue pairs connected with each other, as seen from one.
    pub fn partner(&self, qp: usize) -> Option<usize> {
        self.qps[qp].link.filter(|other| self.qps[*other].link == Some(qp))
    }

    /// From now on only what always holds is checked: the order of completions, and that each is of something posted.
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
        // What waits for a poll to be executed, or for the owner of a shared receive to look, may fail with the rest.
        let receives = pair.recv_done.iter_mut().filter(|done| done.late || is_shared);
        let sends = pair.send_done.iter_mut().filter(|done| done.late || is_target_shared);
        for done in receives.chain(sends) {
            (done.must, done.statuses) = (false, status::ANY);
        }
    }

    /// What was to come at its queues may not come any more, and so no event.
    pub fn excuse_events(&mut self, qp: usize) {
        for cq in [self.qps[qp].send_cq, self.qps[qp].recv_cq] {
            self.cqs[cq].must_event = false;
        }
    }

    /// Whether anything is posted anywhere that names memory.
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

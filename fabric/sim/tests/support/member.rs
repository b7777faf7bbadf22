//! A queue pair of the traffic scenarios: its requests, and the checks of its completions.

use std::collections::{BTreeMap, VecDeque};

use farcall_sim::Stream;
use farcall_sim::check::{Deliveries, Image, Ledger, Queue, WriteId};
use farcall_verbs::{
    AhAttr, AtomicTarget, Gid, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvWr,
    SendFlags, SendWr, Sge, UdTarget, Wc, WcOpcode, WrOpcode,
};

use super::node::{ALL, Buffers, MESSAGE_BYTES, Node, RECEIVE_BIT, read, sge, write};

const SLOTS: usize = 16;
const RECEIVES: usize = 8;
/// Length of the memory that the peer writes, at the beginning of a region.
pub const TARGET_BYTES: usize = 6_144;
const SLOTS_BYTES: usize = SLOTS * MESSAGE_BYTES;
/// Offset of a word after the slots that only the peer's compare-and-swaps change.
const WORD_AT: usize = (TARGET_BYTES + SLOTS_BYTES).next_multiple_of(8);
pub const QKEY: u32 = 0x2222;

/// A posted request.
pub enum Did {
    /// A message of a flow.
    Message { flow: u64, number: u64 },
    /// A WRITE; with immediate data it is a message, too.
    Write { id: WriteId, at: usize, len: usize, message: Option<u64> },
    /// A READ of memory that this end has written.
    Read { at: usize, len: usize },
    /// A compare-and-swap of the word, and the value that it must find.
    Swap { old: u64 },
    /// An addition to the counter of a node, in one of its incarnations.
    Add { node: usize, life: u64 },
    /// No operation: its completion shows that all earlier requests have completed.
    Mark,
}

impl Did {
    const fn returns_data(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Swap { .. } | Self::Add { .. })
    }
}

fn word(mr: &dyn RawMr) -> u64 {
    u64::from_ne_bytes(read(mr, WORD_AT, 8).try_into().unwrap())
}

/// A queue pair.
pub struct Member {
    pub node: usize,
    pub kind: QpType,
    /// The connected member.
    pub peer: Option<usize>,
    pub qp: Box<dyn RawQp>,
    pub mr: Box<dyn RawMr>,
    /// Its number at the checkers; a new one for each connection.
    pub account: u64,
    pub sends: VecDeque<(u64, usize, Did)>,
    free: Vec<usize>,
    unsignalled: u32,
    /// Its own receives, if it uses no shared receive queue.
    pub receives: Option<Buffers>,
    /// Model of the memory that it writes at its peer.
    pub image: Image,
    /// Value that its compare-and-swaps leave in the word.
    word: u64,
    /// WRITEs with immediate data.
    told: BTreeMap<u64, (WriteId, usize, usize)>,
    pub has_failed: bool,
    /// Number of notifications that no further shared receive will complete at this queue pair.
    pub last_told: u32,
}

/// Destination of a message.
pub struct Way<'a> {
    pub flow: u64,
    pub peer: &'a Member,
    pub counter: (&'a dyn RawMr, u64),
    /// Address handle, for datagrams.
    pub path: Option<&'a dyn farcall_verbs::AddressHandle>,
}

fn make(node: &Node, kind: QpType) -> Box<dyn RawQp> {
    let cap = QpCap { max_send_wr: 2 * SLOTS as u32, max_recv_wr: 2 * RECEIVES as u32, ..QpCap::default() };
    let srq = node.shared.as_ref().map(|shared| &*shared.srq);
    let attr =
        QpInitAttr { send_cq: &*node.cq, recv_cq: &*node.cq, srq, cap, qp_type: kind, sq_sig_all: false };
    node.pd.create_qp(&attr).unwrap()
}

impl Member {
    pub fn new(at: usize, node: &Node, kind: QpType, peer: Option<usize>, account: u64) -> Self {
        let mut member = Self {
            node: at,
            kind,
            peer,
            qp: make(node, kind),
            mr: node.pd.alloc_mr(WORD_AT + 8, ALL).unwrap(),
            account,
            sends: VecDeque::new(),
            free: (0..SLOTS).collect(),
            unsignalled: 0,
            receives: node.shared.is_none().then(|| Buffers::new(&*node.pd, RECEIVES)),
            image: Image::new(&[0; TARGET_BYTES]),
            word: 0,
            told: BTreeMap::new(),
            has_failed: false,
            last_told: 0,
        };
        if kind == QpType::Ud {
            member.open_datagrams();
        }
        member
    }

    fn open_datagrams(&mut self) {
        self.qp.modify(&QpAttr::init_datagrams(QKEY)).unwrap();
        self.qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        self.qp.modify(&QpAttr::rts_unreliable(7)).unwrap();
    }

    pub fn connect(&mut self, gid: Gid, dest_qpn: u32, mtu: Mtu, (rq_psn, sq_psn): (u32, u32)) {
        let path = AhAttr { dgid: gid, port_num: 1, ..AhAttr::default() };
        self.qp.modify(&QpAttr::init(ALL)).unwrap();
        let (rtr, rts) = if self.kind == QpType::Rc {
            let rts = QpAttr { timeout: Some(9), retry_cnt: Some(5), ..QpAttr::rts(sq_psn) };
            (QpAttr::rtr(dest_qpn, rq_psn, path, mtu), rts)
        } else {
            (QpAttr::rtr_unreliable(dest_qpn, rq_psn, path, mtu), QpAttr::rts_unreliable(sq_psn))
        };
        self.qp.modify(&rtr).unwrap();
        self.qp.modify(&rts).unwrap();
    }

    /// Replaces a failed queue pair by a new one, with another account.
    pub fn renew(&mut self, node: &Node, account: u64) {
        for (_, slot, did) in self.sends.drain(..) {
            assert!(!did.returns_data(), "what returns data is signalled");
            self.free.push(slot);
        }
        self.account = account;
        (self.unsignalled, self.has_failed, self.last_told) = (0, false, 0);
        self.told.clear();
        self.qp = make(node, self.kind);
        if self.kind == QpType::Ud {
            self.open_datagrams();
        }
    }

    /// Replaces the member of a crashed process by `new`. Its writes may still be in flight.
    pub fn die(&mut self, new: Self) {
        let old = std::mem::replace(self, new);
        (self.image, self.told) = (old.image, old.told);
        self.has_failed = self.peer.is_some();
    }

    /// Prepares the member for a new connection.
    pub fn revive(&mut self, account: u64) {
        (self.account, self.has_failed) = (account, false);
        self.told.clear();
    }

    pub fn fail(&mut self) {
        self.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        self.has_failed = true;
    }

    pub fn post_receive(&mut self, wr_id: u64, ledger: &mut Ledger, random: &mut Stream) {
        let Some(sges) = self.receives.as_mut().and_then(|receives| receives.take(wr_id, random)) else {
            return;
        };
        // SAFETY: the region exists as long as the queue pair.
        unsafe { self.qp.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
        ledger.posted(self.account, Queue::Receive, wr_id, true);
    }

    /// Posts a random request to the other end of `way`.
    pub fn act(
        &mut self,
        wr_id: u64,
        way: &Way<'_>,
        (deliveries, ledger): (&mut Deliveries, &mut Ledger),
        (random, len_max): (&mut Stream, usize),
    ) {
        let Some(slot) = self.free.pop() else { return };
        let here = TARGET_BYTES + slot * MESSAGE_BYTES;
        let len = [0, 1, 8, 100, 700, 2_900][random.below(6) as usize].min(len_max);
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        let number = deliveries.next_number(way.flow);
        let has_imm = len < 8 || random.chance_ppm(500_000);
        let (sges, word) = ([sge(&*self.mr, here, len)], [sge(&*self.mr, here, 8)]);
        // A reliable connection with receives of its own uses all operations.
        let is_versatile = self.kind == QpType::Rc && self.receives.is_some();
        let what = match self.kind {
            QpType::Ud => 0,
            QpType::Uc => random.below(5),
            _ => random.below(if is_versatile { 8 } else { 6 }),
        };
        let (peer, rkey) = (way.peer.mr.remote_addr(), way.peer.mr.rkey());
        let (wr, did) = match what {
            0..=2 => {
                if !has_imm {
                    bytes[..8].copy_from_slice(&number.to_ne_bytes());
                }
                let wr = self.message(wr_id, &sges, way);
                deliveries.sent(way.flow, number, bytes.clone());
                let wr = if has_imm { wr.with_imm(number as u32) } else { wr };
                (wr, Did::Message { flow: way.flow, number })
            }
            3 | 4 => {
                let at = random.below((TARGET_BYTES - MESSAGE_BYTES) as u64) as usize;
                let id = self.image.begin(at, &bytes);
                let wr = SendWr::write(wr_id, &sges, peer + at as u64, rkey);
                let message = has_imm.then_some(number);
                if has_imm {
                    deliveries.sent(way.flow, number, Vec::new());
                    self.told.insert(number, (id, at, len));
                }
                (if has_imm { wr.with_imm(number as u32) } else { wr }, Did::Write { id, at, len, message })
            }
            6 => {
                let at = random.below((TARGET_BYTES - MESSAGE_BYTES) as u64) as usize;
                (SendWr::read(wr_id, &sges, peer + at as u64, rkey), Did::Read { at, len })
            }
            7 => {
                let (old, new) = (self.word, random.next_u64());
                self.word = new;
                let to =
                    AtomicTarget { remote_addr: peer + WORD_AT as u64, compare_add: old, swap: new, rkey };
                (SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, wr_id, &word, to), Did::Swap { old })
            }
            _ => {
                let (mr, life) = way.counter;
                let to =
                    AtomicTarget { remote_addr: mr.remote_addr(), compare_add: 1, swap: 0, rkey: mr.rkey() };
                let wr = SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, wr_id, &word, to);
                (wr, Did::Add { node: way.peer.node, life })
            }
        };
        write(&*self.mr, here, &bytes);
        let returns_data = did.returns_data();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, is_versatile && random.chance_ppm(200_000));
        flags.set(SendFlags::INLINE, !returns_data && len <= 100 && random.chance_ppm(500_000));
        let is_signalled = returns_data || self.unsignalled >= 6 || random.chance_ppm(500_000);
        flags.set(SendFlags::SIGNALED, is_signalled);
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        self.post(wr.with_flags(flags), slot, did, ledger);
    }

    fn message<'sg>(&self, wr_id: u64, sges: &'sg [Sge], way: &Way<'_>) -> SendWr<'sg> {
        match way.path {
            Some(path) => {
                let remote_qpn = way.peer.qp.qp_num();
                SendWr::send_to(wr_id, sges, UdTarget { ah: path.as_raw(), remote_qpn, remote_qkey: QKEY })
            }
            None => SendWr::send(wr_id, sges),
        }
    }

    fn post(&mut self, wr: SendWr<'_>, slot: usize, did: Did, ledger: &mut Ledger) {
        let is_signalled = wr.send_flags.contains(SendFlags::SIGNALED);
        // SAFETY: the region exists as long as the queue pair; slots are reused after their completion only.
        unsafe { self.qp.post_send(&[wr]) }.unwrap();
        ledger.posted(self.account, Queue::Send, wr.wr_id, is_signalled);
        self.sends.push_back((wr.wr_id, slot, did));
    }

    /// Posts a message of eight bytes, which fits every receive, and whose completion shows that all earlier requests
    /// have completed. Returns its number.
    pub fn probe(
        &mut self,
        wr_id: u64,
        way: &Way<'_>,
        deliveries: &mut Deliveries,
        ledger: &mut Ledger,
    ) -> u64 {
        let slot = self.free.pop().expect("a place: everything before is over");
        let here = TARGET_BYTES + slot * MESSAGE_BYTES;
        let number = deliveries.next_number(way.flow);
        write(&*self.mr, here, &number.to_ne_bytes());
        deliveries.sent(way.flow, number, number.to_ne_bytes().to_vec());
        let sges = [sge(&*self.mr, here, 8)];
        let wr = self.message(wr_id, &sges, way).with_flags(SendFlags::SIGNALED);
        self.unsignalled = 0;
        self.post(wr, slot, Did::Message { flow: way.flow, number }, ledger);
        number
    }

    /// Posts a request whose completion shows that all earlier requests have completed, if there is space for it.
    pub fn mark(
        &mut self,
        wr_id: u64,
        elsewhere: Option<&dyn farcall_verbs::AddressHandle>,
        ledger: &mut Ledger,
    ) {
        let Some(slot) = self.free.pop() else { return };
        let wr = match elsewhere {
            // No queue pair has this Q_Key.
            Some(path) => {
                SendWr::send_to(wr_id, &[], UdTarget { ah: path.as_raw(), remote_qpn: 1, remote_qkey: 1 })
            }
            None => SendWr::write(wr_id, &[], 0, 0),
        };
        self.unsignalled = 0;
        self.post(wr.with_flags(SendFlags::SIGNALED), slot, Did::Mark, ledger);
    }

    /// Handles the completion of a send, and thereby of all sends before it. Calls `added` with the outcome of
    /// additions: node, incarnation, and the old value if known.
    pub fn sent(
        &mut self,
        wc: &Wc,
        deliveries: &mut Deliveries,
        flow: u64,
        mut added: impl FnMut(usize, u64, Option<u64>),
    ) {
        loop {
            let (wr_id, slot, did) = self.sends.pop_front().expect("the ledger knows it");
            let is_well = wc.status.is_success() || wr_id != wc.wr_id;
            let is_acknowledged = is_well && self.kind == QpType::Rc;
            let here = |len| read(&*self.mr, TARGET_BYTES + slot * MESSAGE_BYTES, len);
            let value = || u64::from_ne_bytes(here(8).try_into().unwrap());
            match did {
                Did::Read { at, len } if is_well => {
                    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RDMA_READ, len as u32));
                    let found = self.image.check(at, &here(len));
                    found.unwrap_or_else(|wrong| panic!("a READ found: {wrong}"));
                }
                Did::Swap { old } if is_well => assert_eq!(value(), old, "a swap found another value"),
                Did::Message { flow, number } if is_acknowledged => deliveries.acknowledged(flow, number),
                Did::Write { id, at, len, message } if is_acknowledged => {
                    self.image.confirm(id, at, len);
                    message.into_iter().for_each(|number| deliveries.acknowledged(flow, number));
                }
                Did::Add { node, life } => {
                    added(node, life, is_well.then(value));
                }
                _ => {}
            }
            self.free.push(slot);
            if wr_id == wc.wr_id {
                return;
            }
        }
    }

    /// Records that the peer was notified of a WRITE of this end: the peer's memory contains it completely, unless a
    /// later one overwrote it.
    pub fn write_was_told(&mut self, number: u64, peer: &dyn RawMr) {
        let (id, at, len) = self.told.remove(&number).expect("a WRITE with an immediate");
        self.image.check_since(id, at, &read(peer, at, len)).unwrap_or_else(|wrong| {
            panic!("told of a WRITE, {:?} message {number} {id:?} at {at} len {len}: {wrong}", self.kind)
        });
        // A reliable WRITE is acknowledged, too; an earlier READ may still return the old contents.
        if self.kind != QpType::Rc {
            self.image.confirm(id, at, len);
        }
    }

    /// Returns whether a message is a WRITE.
    pub fn is_write(&self, number: u64) -> bool {
        self.told.contains_key(&number)
    }

    /// Checks the peer's memory against the writes of this end. If nothing is in flight any more, its contents become
    /// known.
    pub fn check_image(&self, peer: &dyn RawMr) {
        let found = read(peer, 0, TARGET_BYTES);
        self.image.check(0, &found).unwrap_or_else(|wrong| panic!("what was written: {wrong}"));
    }

    pub fn adopt_image(&mut self, peer: &dyn RawMr) {
        self.image = Image::new(&read(peer, 0, TARGET_BYTES));
        self.word = word(peer);
    }

    /// Checks, after all requests have completed, that the word contains the value of the last compare-and-swap.
    pub fn check_word(&self, peer: &dyn RawMr) {
        assert_eq!(self.word, word(peer), "the swapped word");
    }
}

/// Returns the number that a message carries.
pub fn number_of(wc: &Wc, bytes: &[u8]) -> u64 {
    match wc.imm() {
        Some(imm) => u64::from(imm),
        None => bytes.first_chunk().map_or(0, |number| u64::from_ne_bytes(*number)),
    }
}

pub const fn is_receive(wc: &Wc) -> bool {
    wc.wr_id & RECEIVE_BIT != 0
}

pub const WRITE_TOLD: WcOpcode = WcOpcode::RECV_RDMA_WITH_IMM;

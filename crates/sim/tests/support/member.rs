//! A queue pair of the traffic scenarios: what it was asked to do, and how its completions are judged.

use std::collections::{BTreeMap, VecDeque};

use farcall_sim::Stream;
use farcall_sim::check::{Deliveries, Ledger, LossyImage, Queue, WriteId};
use farcall_verbs::{
    AhAttr, AtomicTarget, Gid, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvWr,
    SendFlags, SendWr, Sge, UdTarget, Wc, WcOpcode, WrOpcode,
};

use super::node::{ALL, Buffers, MESSAGE_BYTES, Node, RECEIVE_BIT, read, sge, write};

const SLOTS: usize = 16;
const RECEIVES: usize = 8;
/// What the peer writes lies first in a region.
pub const TARGET_BYTES: usize = 6_144;
pub const QKEY: u32 = 0x2222;

/// What a request was.
pub enum Did {
    /// A message of a way.
    Message { flow: u64, number: u64 },
    /// A WRITE; with an immediate it is a message, too.
    Write { id: WriteId, at: usize, len: usize, message: Option<u64> },
    /// An addition to the counter of a node, in one of its lives.
    Add { node: usize, life: u64 },
    /// Nothing: it tells that everything before it is over.
    Mark,
}

/// A queue pair.
pub struct Member {
    pub node: usize,
    pub kind: QpType,
    /// The member that it is connected to.
    pub peer: Option<usize>,
    pub qp: Box<dyn RawQp>,
    pub mr: Box<dyn RawMr>,
    /// Its account; another one after each connection.
    pub account: u64,
    pub sends: VecDeque<(u64, usize, Did)>,
    free: Vec<usize>,
    unsignalled: u32,
    /// Its own receives, if it takes no shared ones.
    pub receives: Option<Buffers>,
    /// What it writes at its peer.
    pub image: LossyImage,
    /// WRITEs that are told by an immediate.
    told: BTreeMap<u64, (WriteId, usize, usize)>,
    pub has_failed: bool,
    /// How often it was told that no shared receive will complete here any more.
    pub last_told: u32,
}

/// Where a message goes.
pub struct Way<'a> {
    pub flow: u64,
    pub peer: &'a Member,
    pub counter: (&'a dyn RawMr, u64),
    /// For datagrams.
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
            mr: node.pd.alloc_mr(TARGET_BYTES + SLOTS * MESSAGE_BYTES, ALL).unwrap(),
            account,
            sends: VecDeque::new(),
            free: (0..SLOTS).collect(),
            unsignalled: 0,
            receives: node.shared.is_none().then(|| Buffers::new(&*node.pd, RECEIVES)),
            image: LossyImage::new(&[0; TARGET_BYTES]),
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
        self.qp.modify(&QpAttr { qkey: Some(QKEY), ..QpAttr::init(ALL) }).unwrap();
        self.qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        self.qp.modify(&QpAttr { sq_psn: Some(7), ..QpAttr::to(QpState::Rts) }).unwrap();
    }

    pub fn connect(&mut self, gid: Gid, dest_qpn: u32, mtu: Mtu, (rq_psn, sq_psn): (u32, u32)) {
        let path = AhAttr { dgid: gid, port_num: 1, ..AhAttr::default() };
        self.qp.modify(&QpAttr::init(ALL)).unwrap();
        self.qp.modify(&QpAttr::rtr(dest_qpn, rq_psn, path, mtu)).unwrap();
        let rts = QpAttr { timeout: Some(9), retry_cnt: Some(5), ..QpAttr::rts(sq_psn) };
        self.qp.modify(&rts).unwrap();
    }

    /// Another queue pair in place of one that is over, with another account.
    pub fn renew(&mut self, node: &Node, account: u64) {
        for (_, slot, did) in self.sends.drain(..) {
            assert!(!matches!(did, Did::Add { .. }), "additions are signalled");
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

    /// Its process is gone, and `new` is what comes in its place. What it wrote may still be on its way.
    pub fn die(&mut self, new: Self) {
        let old = std::mem::replace(self, new);
        (self.image, self.told) = (old.image, old.told);
        self.has_failed = self.peer.is_some();
    }

    /// It is to be connected again.
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
        // SAFETY: the region lives as long as the pair.
        unsafe { self.qp.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
        ledger.posted(self.account, Queue::Receive, wr_id, true);
    }

    /// Posts something random to the other end of `way`.
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
        let what = if self.kind == QpType::Ud {
            0
        } else {
            random.below(if self.kind == QpType::Rc { 6 } else { 5 })
        };
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
                let wr =
                    SendWr::write(wr_id, &sges, way.peer.mr.addr() as u64 + at as u64, way.peer.mr.rkey());
                let message = has_imm.then_some(number);
                if has_imm {
                    deliveries.sent(way.flow, number, Vec::new());
                    self.told.insert(number, (id, at, len));
                }
                (if has_imm { wr.with_imm(number as u32) } else { wr }, Did::Write { id, at, len, message })
            }
            _ => {
                let (mr, life) = way.counter;
                let to =
                    AtomicTarget { remote_addr: mr.addr() as u64, compare_add: 1, swap: 0, rkey: mr.rkey() };
                let wr = SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, wr_id, &word, to);
                (wr, Did::Add { node: way.peer.node, life })
            }
        };
        write(&*self.mr, here, &bytes);
        let is_add = matches!(did, Did::Add { .. });
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::INLINE, !is_add && len <= 100 && random.chance_ppm(500_000));
        let is_signalled = is_add || self.unsignalled >= 6 || random.chance_ppm(500_000);
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
        // SAFETY: the region lives as long as the pair; slots are used again after their completion.
        unsafe { self.qp.post_send(&[wr]) }.unwrap();
        ledger.posted(self.account, Queue::Send, wr.wr_id, is_signalled);
        self.sends.push_back((wr.wr_id, slot, did));
    }

    /// Posts a message of eight bytes, which fits every receive, and whose completion tells that all before it are over.
    /// Returns its number.
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

    /// Posts a request that only tells when everything before it is over, if there is room for it.
    pub fn mark(
        &mut self,
        wr_id: u64,
        elsewhere: Option<&dyn farcall_verbs::AddressHandle>,
        ledger: &mut Ledger,
    ) {
        let Some(slot) = self.free.pop() else { return };
        let wr = match elsewhere {
            // Nobody has this Q_Key.
            Some(path) => {
                SendWr::send_to(wr_id, &[], UdTarget { ah: path.as_raw(), remote_qpn: 1, remote_qkey: 1 })
            }
            None => SendWr::write(wr_id, &[], 0, 0),
        };
        self.unsignalled = 0;
        self.post(wr.with_flags(SendFlags::SIGNALED), slot, Did::Mark, ledger);
    }

    /// A send completed, and with it all before it. What becomes of additions is told by `added`: where, in which life, and
    /// what was found, if that is known.
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
            match did {
                Did::Message { flow, number } if is_acknowledged => deliveries.acknowledged(flow, number),
                Did::Write { id, at, len, message } if is_acknowledged => {
                    self.image.confirm(id, at, len);
                    message.into_iter().for_each(|number| deliveries.acknowledged(flow, number));
                }
                Did::Add { node, life } => {
                    let here = TARGET_BYTES + slot * MESSAGE_BYTES;
                    let found = u64::from_ne_bytes(read(&*self.mr, here, 8).try_into().unwrap());
                    added(node, life, is_well.then_some(found));
                }
                _ => {}
            }
            self.free.push(slot);
            if wr_id == wc.wr_id {
                return;
            }
        }
    }

    /// A WRITE of this end that its peer was told of: it is in the peer's memory as a whole, unless a later one is.
    pub fn write_was_told(&mut self, number: u64, peer: &dyn RawMr) {
        let (id, at, len) = self.told.remove(&number).expect("a WRITE with an immediate");
        self.image.confirm(id, at, len);
        self.image.check(at, &read(peer, at, len)).unwrap_or_else(|wrong| {
            panic!("told of a WRITE, {:?} message {number} {id:?} at {at} len {len}: {wrong}", self.kind)
        });
    }

    /// Whether a message is a WRITE's.
    pub fn is_write(&self, number: u64) -> bool {
        self.told.contains_key(&number)
    }

    /// The peer's memory is what this end may have left there. If nothing is under way any more, it is known then.
    pub fn check_image(&self, peer: &dyn RawMr) {
        let found = read(peer, 0, TARGET_BYTES);
        self.image.check(0, &found).unwrap_or_else(|wrong| panic!("what was written: {wrong}"));
    }

    pub fn adopt_image(&mut self, peer: &dyn RawMr) {
        self.image = LossyImage::new(&read(peer, 0, TARGET_BYTES));
    }
}

/// The number that a message carries.
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

//! Two connected ends that do random operations to each other, with all accounts that can be kept of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use farcall_sim::check::{Image, Ledger, Queue, WriteId};
use farcall_sim::{Host, Stream};
use farcall_verbs::{
    Access, AhAttr, AtomicTarget, Context, CqInitAttr, Mtu, ProtectionDomain, Provider, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RecvWr, SendFlags, SendWr, Sge, Wc, WcOpcode, WrOpcode,
};

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One message at most.
const MESSAGE_BYTES: usize = 3_000;
/// Requests of an end under way at most, each with its place for what it sends or fetches.
const SLOTS: usize = 24;
const RECEIVES: usize = 8;
/// What the peer writes lies first in a region.
const TARGET_BYTES: usize = 8_192;
const SLOTS_AT: usize = TARGET_BYTES + 64;
const RECEIVES_AT: usize = SLOTS_AT + SLOTS * MESSAGE_BYTES;
const REGION_BYTES: usize = RECEIVES_AT + RECEIVES * MESSAGE_BYTES;
/// A word behind the target that only the peer's compare-and-swaps change.
const WORD_AT: usize = TARGET_BYTES;

const RECEIVE_BIT: u64 = 1 << 63;

/// A node's device, and a counter that everybody adds to.
pub struct NodeKit {
    context: Arc<dyn Context>,
    pd: Arc<dyn ProtectionDomain>,
    counter: Box<dyn RawMr>,
    /// What additions found there; each must find another number.
    pub found: BTreeMap<u64, u64>,
    /// Additions whose outcome nobody knows.
    pub unknown: u64,
}

impl NodeKit {
    pub fn new(host: &Host) -> Self {
        let context = host.devices().unwrap()[0].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let counter = pd.alloc_mr(8, ALL).unwrap();
        Self { context, pd, counter, found: BTreeMap::new(), unknown: 0 }
    }

    pub fn check_counter(&self) {
        let acknowledged = self.found.len() as u64;
        let total = read(&*self.counter, 0, 8);
        let total = u64::from_ne_bytes(total.try_into().unwrap());
        assert!(
            (acknowledged..=acknowledged + self.unknown).contains(&total),
            "{acknowledged} additions were acknowledged, {} are unknown, and the counter says {total}",
            self.unknown
        );
        assert!(self.found.keys().all(|found| *found < total), "an addition found more than there was");
    }
}

fn read(mr: &dyn RawMr, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= mr.len_bytes());
    let mut bytes = vec![0; len];
    // SAFETY: inside the region; the world stands still.
    unsafe { mr.addr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

fn write(mr: &dyn RawMr, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= mr.len_bytes());
    // SAFETY: as in `read`.
    unsafe { mr.addr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// What a request was, to judge its completion by.
enum Did {
    Write(WriteId),
    /// A message that the peer receives.
    Message,
    /// Offset and length at the target, and the last write begun before.
    Read(usize, usize, Option<WriteId>),
    Add,
    /// The value that must be found.
    Swap(u64),
}

/// What the peer must receive next.
struct Coming {
    imm: Option<u32>,
    bytes: Vec<u8>,
    write: Option<WriteId>,
}

/// One end.
pub struct End {
    pub node: usize,
    cq: Box<dyn RawCq>,
    qp: Box<dyn RawQp>,
    mr: Box<dyn RawMr>,
    /// Its account; another one after each connection.
    account: u64,
    posted: u64,
    unsignalled: u32,
    requests: VecDeque<(u64, usize, Did)>,
    free: Vec<usize>,
    receives: VecDeque<(u64, usize)>,
    free_receives: Vec<usize>,
    /// What this end writes at the other.
    image: Image,
    last_write: Option<WriteId>,
    word: u64,
    coming: VecDeque<Coming>,
    pub has_failed: bool,
}

impl End {
    fn new(node: usize, kit: &NodeKit, account: u64) -> Self {
        let cq = kit.context.create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
        let mr = kit.pd.alloc_mr(REGION_BYTES, ALL).unwrap();
        let qp = Self::make(kit, &*cq);
        Self {
            node,
            cq,
            qp,
            mr,
            account,
            posted: 0,
            unsignalled: 0,
            requests: VecDeque::new(),
            free: (0..SLOTS).collect(),
            receives: VecDeque::new(),
            free_receives: (0..RECEIVES).collect(),
            image: Image::new(TARGET_BYTES),
            last_write: None,
            word: 0,
            coming: VecDeque::new(),
            has_failed: false,
        }
    }

    fn make(kit: &NodeKit, cq: &dyn RawCq) -> Box<dyn RawQp> {
        let cap =
            QpCap { max_send_wr: 2 * SLOTS as u32, max_recv_wr: 2 * RECEIVES as u32, ..QpCap::default() };
        let attr =
            QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap, qp_type: QpType::Rc, sq_sig_all: false };
        kit.pd.create_qp(&attr).unwrap()
    }

    fn connect(&mut self, kit: &NodeKit, dest_qpn: u32, mtu: Mtu, psns: (u32, u32)) {
        let path = AhAttr { dgid: kit.context.query_gid(1, 0).unwrap(), port_num: 1, ..AhAttr::default() };
        self.qp.modify(&QpAttr::init(ALL)).unwrap();
        self.qp.modify(&QpAttr::rtr(dest_qpn, psns.0, path, mtu)).unwrap();
        let rts = QpAttr { timeout: Some(9), retry_cnt: Some(5), ..QpAttr::rts(psns.1) };
        self.qp.modify(&rts).unwrap();
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() as u64 + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Posts receives, or lets the peer wait.
    pub fn post_receives(&mut self, ledger: &mut Ledger, random: &mut Stream) {
        for _ in 0..random.below(RECEIVES as u64 + 1) {
            let Some(slot) = self.free_receives.pop() else { return };
            self.posted += 1;
            let wr_id = self.posted | RECEIVE_BIT;
            let sges = [self.sge(RECEIVES_AT + slot * MESSAGE_BYTES, MESSAGE_BYTES)];
            // SAFETY: the region lives as long as the pair.
            unsafe { self.qp.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
            ledger.posted(self.account, Queue::Receive, wr_id, true);
            self.receives.push_back((wr_id, slot));
        }
    }

    /// Posts a random operation on the other end.
    fn act(&mut self, peer: &mut End, kit: &NodeKit, ledger: &mut Ledger, random: &mut Stream) {
        if self.has_failed {
            return;
        }
        let Some(slot) = self.free.pop() else { return };
        self.posted += 1;
        let wr_id = self.posted;
        let here = SLOTS_AT + slot * MESSAGE_BYTES;
        let len = [0, 1, 8, 100, 700, 2_900][random.below(6) as usize];
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        let at = random.below((TARGET_BYTES - MESSAGE_BYTES) as u64) as usize;
        let (to, rkey) = (peer.mr.addr() as u64, peer.mr.rkey());
        let (long, word) = ([self.sge(here, len)], [self.sge(here, 8)]);
        let imm = random.chance_ppm(500_000).then_some(self.posted as u32);
        let (wr, did) = match random.below(6) {
            0 | 1 => {
                write(&*self.mr, here, &bytes);
                let id = self.image.begin(at, &bytes);
                self.last_write = Some(id);
                let wr = SendWr::write(wr_id, &long, to + at as u64, rkey);
                if let Some(imm) = imm {
                    peer.coming.push_back(Coming { imm: Some(imm), bytes: Vec::new(), write: Some(id) });
                    (wr.with_imm(imm), Did::Write(id))
                } else {
                    (wr, Did::Write(id))
                }
            }
            2 => {
                write(&*self.mr, here, &bytes);
                peer.coming.push_back(Coming { imm, bytes, write: None });
                let wr = SendWr::send(wr_id, &long);
                (imm.map_or(wr, |imm| wr.with_imm(imm)), Did::Message)
            }
            3 => {
                let wr = SendWr::read(wr_id, &long, to + at as u64, rkey);
                (wr, Did::Read(at, len, self.last_write))
            }
            4 => {
                let remote_addr = kit.counter.addr() as u64;
                let target = AtomicTarget { remote_addr, compare_add: 1, swap: 0, rkey: kit.counter.rkey() };
                (SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, wr_id, &word, target), Did::Add)
            }
            _ => {
                let (old, new) = (self.word, random.next_u64());
                self.word = new;
                let target =
                    AtomicTarget { remote_addr: to + WORD_AT as u64, compare_add: old, swap: new, rkey };
                (SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, wr_id, &word, target), Did::Swap(old))
            }
        };
        let returns_data = matches!(did, Did::Read(..) | Did::Add | Did::Swap(_));
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, random.chance_ppm(200_000));
        flags.set(SendFlags::INLINE, !returns_data && len <= 100 && random.chance_ppm(500_000));
        let is_signalled = returns_data || self.unsignalled >= 6 || random.chance_ppm(500_000);
        flags.set(SendFlags::SIGNALED, is_signalled);
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        // SAFETY: the region lives as long as the pair; slots are used again after their completion.
        unsafe { self.qp.post_send(&[wr.with_flags(flags)]) }.unwrap();
        ledger.posted(self.account, Queue::Send, wr_id, is_signalled);
        self.requests.push_back((wr_id, slot, did));
    }

    /// Posts a last operation that tells when everything is done. Returns whether there was room.
    fn finish(&mut self, ledger: &mut Ledger) {
        let Some(slot) = self.free.pop() else { return };
        self.posted += 1;
        let id = self.image.begin(0, &[]);
        let wr = SendWr::write(self.posted, &[], 0, 0).with_flags(SendFlags::SIGNALED);
        // SAFETY: no memory is named.
        unsafe { self.qp.post_send(&[wr]) }.unwrap();
        ledger.posted(self.account, Queue::Send, self.posted, true);
        self.requests.push_back((self.posted, slot, Did::Write(id)));
        self.unsignalled = 0;
    }

    /// Takes and judges completions. `writer` is the other end.
    fn poll(&mut self, writer: &mut End, kit: &mut NodeKit, ledger: &mut Ledger) -> bool {
        let mut wc = [Wc::default()];
        let mut any = false;
        while self.cq.poll(&mut wc).unwrap() == 1 {
            any = true;
            let wc = wc[0];
            let queue = if wc.wr_id & RECEIVE_BIT == 0 { Queue::Send } else { Queue::Receive };
            ledger.polled(self.account, queue, &wc).unwrap();
            self.has_failed |= !wc.status.is_success();
            match queue {
                Queue::Send => self.sent(&wc, kit),
                Queue::Receive => self.received(&wc, writer),
            }
        }
        any
    }

    /// A send completed, and with it all before it.
    fn sent(&mut self, wc: &Wc, kit: &mut NodeKit) {
        loop {
            let (wr_id, slot, did) = self.requests.pop_front().expect("the ledger knows it");
            let is_well = wc.status.is_success() || wr_id != wc.wr_id;
            match did {
                Did::Write(id) if is_well => self.image.settle(id),
                Did::Read(at, len, before) if is_well => {
                    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RDMA_READ, len as u32));
                    if let Some(before) = before {
                        self.image.settle(before);
                    }
                    let found = read(&*self.mr, SLOTS_AT + slot * MESSAGE_BYTES, len);
                    self.image.check(at, &found).unwrap_or_else(|wrong| panic!("a READ found: {wrong}"));
                }
                Did::Add if is_well => {
                    let found = self.result(slot);
                    let twice = kit.found.insert(found, wr_id);
                    assert!(twice.is_none(), "two additions found {found}");
                }
                Did::Swap(old) if is_well => assert_eq!(self.result(slot), old, "a swap found another value"),
                Did::Add => kit.unknown += 1,
                _ => {}
            }
            self.free.push(slot);
            if wr_id == wc.wr_id {
                return;
            }
        }
    }

    fn result(&self, slot: usize) -> u64 {
        u64::from_ne_bytes(read(&*self.mr, SLOTS_AT + slot * MESSAGE_BYTES, 8).try_into().unwrap())
    }

    /// A receive completed: it must be the next message.
    fn received(&mut self, wc: &Wc, writer: &mut End) {
        let (wr_id, slot) = self.receives.pop_front().expect("the ledger knows it");
        assert_eq!(wr_id, wc.wr_id);
        self.free_receives.push(slot);
        if !wc.status.is_success() {
            return;
        }
        let coming = self.coming.pop_front().expect("a message that nobody sent");
        assert_eq!(wc.imm(), coming.imm);
        if let Some(write) = coming.write {
            assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
            // It tells that this write, and all before it, are there. Only here: a READ of the writer's that was posted
            // before may still bring what was there before.
            let mut image = writer.image.clone();
            image.settle(write);
            let found = read(&*self.mr, 0, TARGET_BYTES);
            image.check(0, &found).unwrap_or_else(|wrong| panic!("told of a WRITE: {wrong}"));
            return;
        }
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RECV, coming.bytes.len()));
        let found = read(&*self.mr, RECEIVES_AT + slot * MESSAGE_BYTES, coming.bytes.len());
        assert!(found == coming.bytes, "a message was garbled");
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn fail(&mut self) {
        self.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        self.has_failed = true;
    }
}

/// A connected pair of ends.
pub struct Pair {
    pub ends: [End; 2],
    mtu: Mtu,
}

fn two<T>(list: &mut [T], a: usize, b: usize) -> (&mut T, &mut T) {
    assert_ne!(a, b);
    let (low, high) = list.split_at_mut(a.max(b));
    if a < b { (&mut low[a], &mut high[0]) } else { (&mut high[0], &mut low[b]) }
}

impl Pair {
    pub fn new(
        nodes: (usize, usize),
        kits: &[NodeKit],
        mtu: Mtu,
        accounts: &mut u64,
        random: &mut Stream,
    ) -> Self {
        *accounts += 2;
        let ends =
            [End::new(nodes.0, &kits[nodes.0], *accounts), End::new(nodes.1, &kits[nodes.1], *accounts + 1)];
        let mut pair = Self { ends, mtu };
        pair.connect(kits, random);
        pair
    }

    fn connect(&mut self, kits: &[NodeKit], random: &mut Stream) {
        let mut psn = || random.below(1 << 24) as u32;
        let psns = (psn(), psn());
        let numbers = [self.ends[0].qp.qp_num(), self.ends[1].qp.qp_num()];
        let nodes = [self.ends[0].node, self.ends[1].node];
        self.ends[0].connect(&kits[nodes[1]], numbers[1], self.mtu, psns);
        self.ends[1].connect(&kits[nodes[0]], numbers[0], self.mtu, (psns.1, psns.0));
    }

    pub fn act(&mut self, side: usize, kits: &[NodeKit], ledger: &mut Ledger, random: &mut Stream) {
        let (end, peer) = two(&mut self.ends, side, 1 - side);
        let kit = &kits[peer.node];
        end.act(peer, kit, ledger, random);
    }

    pub fn poll(&mut self, kits: &mut [NodeKit], ledger: &mut Ledger) -> bool {
        let mut any = false;
        for side in 0..2 {
            let (end, peer) = two(&mut self.ends, side, 1 - side);
            // Counters of the node that the peer is on are what this end adds to.
            let kit = &mut kits[peer.node];
            any |= end.poll(peer, kit, ledger);
        }
        any
    }

    pub fn has_failed(&self) -> bool {
        self.ends.iter().any(|end| end.has_failed)
    }

    pub fn is_idle(&self) -> bool {
        self.ends.iter().all(End::is_idle)
    }

    pub fn finish(&mut self, ledger: &mut Ledger) {
        self.ends.iter_mut().for_each(|end| end.finish(ledger));
    }

    /// Ends the connection and begins another; nothing of the old one may come later.
    pub fn renew(
        &mut self,
        kits: &mut [NodeKit],
        ledger: &mut Ledger,
        accounts: &mut u64,
        random: &mut Stream,
    ) {
        self.ends.iter_mut().for_each(End::fail);
        self.poll(kits, ledger);
        *accounts += 2;
        for (side, end) in self.ends.iter_mut().enumerate() {
            ledger.drained(end.account).unwrap();
            // Requests without completion went well before the end, or are unknown.
            for (_, slot, did) in end.requests.drain(..) {
                assert!(!matches!(did, Did::Add | Did::Swap(_) | Did::Read(..)), "these are signalled");
                end.free.push(slot);
            }
            end.account = *accounts + side as u64;
            end.coming.clear();
            end.unsignalled = 0;
            end.has_failed = false;
            let node = end.node;
            end.qp = End::make(&kits[node], &*end.cq);
        }
        for side in 0..2 {
            let (end, peer) = two(&mut self.ends, side, 1 - side);
            let found = read(&*peer.mr, 0, TARGET_BYTES);
            end.image.check(0, &found).unwrap_or_else(|wrong| panic!("after the end: {wrong}"));
            end.image.adopt(&found);
            end.last_write = None;
            end.word = u64::from_ne_bytes(read(&*peer.mr, WORD_AT, 8).try_into().unwrap());
        }
        self.connect(kits, random);
    }

    /// Everything is done: memory is what it must be, messages have come.
    pub fn check(&self) {
        for side in 0..2 {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let found = read(&*peer.mr, 0, TARGET_BYTES);
            end.image.check(0, &found).unwrap_or_else(|wrong| panic!("at the end: {wrong}"));
            assert_eq!(end.word.to_ne_bytes().to_vec(), read(&*peer.mr, WORD_AT, 8), "the swapped word");
            assert!(
                peer.coming.is_empty(),
                "{} messages were acknowledged and never came",
                peer.coming.len()
            );
        }
    }
}

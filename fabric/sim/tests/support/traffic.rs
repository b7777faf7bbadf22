//! Nodes with queue pairs of several transports that send to each other, with all checkers.

use std::collections::BTreeMap;

use farcall_sim::check::{Deliveries, DeliveryGuarantee, Ledger, Queue};
use farcall_sim::{Host, Stream, World};
use farcall_verbs::{AddressHandle, AsyncEventKind, Gid, Mtu, QpType, Wc, WcFlags, WcOpcode};

use super::member::{Did, Member, WRITE_TOLD, Way, is_receive, number_of};
use super::node::{Buffers, GRH_BYTES, MESSAGE_BYTES, Node, RECEIVE_BIT};

pub struct Traffic {
    pub world: World,
    pub random: Stream,
    pub hosts: Vec<Host>,
    pub nodes: Vec<Node>,
    pub members: Vec<Member>,
    pub(super) gids: Vec<Gid>,
    /// Address handles for datagrams, from each node to each.
    pub(super) paths: Vec<Vec<Box<dyn AddressHandle>>>,
    /// Numbers of all queue pairs that ever existed at the checkers, by node and queue pair number.
    pub(super) numbers: BTreeMap<(usize, u32), u64>,
    mtu: Mtu,
    /// Delivery guarantee of datagrams in this network.
    datagrams: DeliveryGuarantee,
    pub(super) deliveries: Deliveries,
    pub(super) ledger: Ledger,
    accounts: u64,
    posted: u64,
    received: [u64; 3],
}

pub(super) fn flow(from: u64, to: u64) -> u64 {
    from << 32 | to
}

pub(super) fn two<T>(list: &mut [T], a: usize, b: usize) -> (&mut T, &T) {
    assert_ne!(a, b);
    let (low, high) = list.split_at_mut(a.max(b));
    if a < b { (&mut low[a], &high[0]) } else { (&mut high[0], &low[b]) }
}

impl Traffic {
    pub fn new(
        mut world: World,
        random: Stream,
        (nodes, has_shared): (usize, bool),
        (mtu, datagrams): (Mtu, DeliveryGuarantee),
    ) -> Self {
        let hosts: Vec<Host> = (0..nodes).map(|_| world.add_node()).collect();
        let nodes: Vec<Node> = hosts.iter().map(|host| Node::new(host, 0, has_shared)).collect();
        let gids: Vec<Gid> = nodes.iter().map(Node::gid).collect();
        let paths = nodes.iter().map(|node| gids.iter().map(|gid| node.path_to(*gid)).collect()).collect();
        Self {
            world,
            random,
            hosts,
            nodes,
            members: Vec::new(),
            gids,
            paths,
            numbers: BTreeMap::new(),
            mtu,
            datagrams,
            deliveries: Deliveries::default(),
            ledger: Ledger::default(),
            accounts: 0,
            posted: 0,
            received: [0; 3],
        }
    }

    pub(super) fn next_account(&mut self) -> u64 {
        self.accounts += 1;
        self.accounts
    }

    pub(super) fn next_wr_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    fn add(&mut self, node: usize, kind: QpType, peer: Option<usize>) -> usize {
        let account = self.next_account();
        let member = Member::new(node, &self.nodes[node], kind, peer, account);
        self.numbers.insert((node, member.qp.qp_num()), account);
        self.members.push(member);
        self.members.len() - 1
    }

    /// Adds a queue pair for datagrams.
    pub fn add_datagrams(&mut self, node: usize) {
        self.add(node, QpType::Ud, None);
    }

    /// Adds a connection between two nodes, or within one.
    pub fn add_connection(&mut self, kind: QpType, (a, b): (usize, usize)) -> (usize, usize) {
        let first = self.members.len();
        self.add(a, kind, Some(first + 1));
        self.add(b, kind, Some(first));
        self.connect(first, first + 1);
        (first, first + 1)
    }

    pub(super) fn connect(&mut self, a: usize, b: usize) {
        let psns = (self.random.below(1 << 24) as u32, self.random.below(1 << 24) as u32);
        let numbers = [self.members[a].qp.qp_num(), self.members[b].qp.qp_num()];
        let gids = [self.gids[self.members[a].node], self.gids[self.members[b].node]];
        self.members[a].connect(gids[1], numbers[1], self.mtu, psns);
        self.members[b].connect(gids[0], numbers[0], self.mtu, (psns.1, psns.0));
        let guarantee = if self.members[a].kind == QpType::Rc {
            DeliveryGuarantee::Reliable
        } else {
            DeliveryGuarantee::InOrder
        };
        for (from, to) in [(a, b), (b, a)] {
            self.deliveries.open(flow(self.members[from].account, self.members[to].account), guarantee);
        }
    }

    /// Returns a member to which another may send now.
    pub(super) fn partner(&mut self, at: usize) -> Option<usize> {
        if let Some(peer) = self.members[at].peer {
            return Some(peer);
        }
        let others: Vec<usize> = (0..self.members.len())
            .filter(|other| *other != at && self.members[*other].kind == QpType::Ud)
            .collect();
        others.get(self.random.below(others.len() as u64) as usize).copied()
    }

    pub(super) fn with_way<R>(
        &mut self,
        (at, to): (usize, usize),
        work: impl FnOnce(&mut Member, &Way<'_>, (&mut Deliveries, &mut Ledger), &mut Stream) -> R,
    ) -> R {
        let flow = flow(self.members[at].account, self.members[to].account);
        if !self.deliveries.is_open(flow) {
            self.deliveries.open(flow, self.datagrams);
        }
        let (member, peer) = two(&mut self.members, at, to);
        let node = &self.nodes[peer.node];
        let path = (member.kind == QpType::Ud).then(|| &*self.paths[member.node][peer.node]);
        let way = Way { flow, peer, counter: (&*node.counter.mr, node.life), path };
        work(member, &way, (&mut self.deliveries, &mut self.ledger), &mut self.random)
    }

    /// Posts a random request of a member.
    pub fn act(&mut self, at: usize) {
        let Some(to) = self.partner(at) else { return };
        if self.members[at].has_failed {
            return;
        }
        let wr_id = self.next_wr_id();
        let len_max =
            if self.members[at].kind == QpType::Ud { self.mtu.bytes() as usize } else { MESSAGE_BYTES };
        self.with_way((at, to), |member, way, accounts, random| {
            member.act(wr_id, way, accounts, (random, len_max));
        });
    }

    /// Posts receives for a member, or for all members of its node: up to `most`, as far as there is space.
    pub fn post_receives(&mut self, at: usize, most: usize) {
        let member = &mut self.members[at];
        for _ in 0..most {
            self.posted += 1;
            let wr_id = self.posted | RECEIVE_BIT;
            match &mut self.nodes[member.node].shared {
                Some(shared) if shared.buffers.free_len() > 0 => shared.post(wr_id, &mut self.random),
                Some(_) => return,
                None if !member.has_failed => member.post_receive(wr_id, &mut self.ledger, &mut self.random),
                None => return,
            }
        }
    }

    /// Arms or disarms a limit of a member's shared queue.
    pub fn arm(&mut self, at: usize) {
        let limit = self.random.below(8) as u32;
        if let Some(shared) = &mut self.nodes[self.members[at].node].shared {
            shared.arm(limit);
        }
    }

    fn member_of(&self, node: usize, qp_num: u32) -> usize {
        let of = |member: &Member| member.node == node && member.qp.qp_num() == qp_num;
        self.members.iter().position(of).expect("completions go with their queue pair")
    }

    /// Polls and checks the completions of all nodes, and renews failed queue pairs.
    pub fn poll(&mut self) {
        self.take();
        for at in 0..self.members.len() {
            if self.members[at].has_failed {
                self.renew(at);
            }
        }
    }

    pub(super) fn take(&mut self) {
        for node in 0..self.nodes.len() {
            let mut wc = [Wc::default()];
            while self.nodes[node].cq.poll(&mut wc).unwrap() == 1 {
                let at = self.member_of(node, wc[0].qp_num);
                if is_receive(&wc[0]) {
                    self.received(at, &wc[0])
                } else {
                    self.sent(at, &wc[0])
                }
                self.members[at].has_failed |= !wc[0].status.is_success();
            }
            while let Some(event) = self.nodes[node].context.poll_async_event() {
                self.told(node, event.kind, event.element);
            }
        }
    }

    fn told(&mut self, node: usize, kind: AsyncEventKind, element: u32) {
        match kind {
            AsyncEventKind::SrqLimitReached => {
                let shared = self.nodes[node].shared.as_mut().expect("a shared queue has a limit");
                assert_eq!(element, shared.srq.srq_num());
                shared.account.limit_event().unwrap();
            }
            AsyncEventKind::QpLastWqeReached => {
                let at = self.member_of(node, element);
                self.members[at].last_told += 1;
            }
            _ => {}
        }
    }

    fn sent(&mut self, at: usize, wc: &Wc) {
        let member = &mut self.members[at];
        self.ledger.polled(member.account, Queue::Send, wc).unwrap();
        let (account, peer) = (member.account, member.peer);
        let flow = peer.map_or(0, |peer| flow(account, self.members[peer].account));
        let nodes = &mut self.nodes;
        self.members[at].sent(wc, &mut self.deliveries, flow, |node, life, found| {
            let counter = &mut nodes[node];
            match found {
                // The counter was lost with its node.
                _ if counter.life != life => {}
                Some(found) => counter.counter.found(found, wc.wr_id),
                None => counter.counter.unknown += 1,
            }
        });
    }

    fn received(&mut self, at: usize, wc: &Wc) {
        let member = &mut self.members[at];
        let buffers: &mut Buffers = match &mut self.nodes[member.node].shared {
            Some(shared) => {
                shared.account.completed(wc.wr_id).unwrap();
                &mut shared.buffers
            }
            None => {
                self.ledger.polled(member.account, Queue::Receive, wc).unwrap();
                member.receives.as_mut().expect("it takes no shared ones")
            }
        };
        let bytes = buffers.give_back(wc.wr_id, wc.byte_len as usize);
        if !wc.status.is_success() {
            return;
        }
        let (to, kind) = (member.account, member.kind);
        self.received[[QpType::Rc, QpType::Uc].iter().position(|of| *of == kind).unwrap_or(2)] += 1;
        match member.peer {
            Some(peer) => {
                let flow = flow(self.members[peer].account, to);
                self.message(at, peer, (wc, flow), &bytes);
            }
            None => self.datagram(at, wc, &bytes),
        }
    }

    fn message(&mut self, at: usize, peer: usize, (wc, flow): (&Wc, u64), bytes: &[u8]) {
        let number = number_of(wc, bytes);
        if wc.opcode == WRITE_TOLD {
            self.deliveries.received(flow, number, &[]).unwrap();
            let (writer, target) = two(&mut self.members, peer, at);
            assert!(writer.is_write(number), "message {number} of way {flow:#x} is no WRITE");
            writer.write_was_told(number, &*target.mr);
        } else {
            assert_eq!(wc.opcode, WcOpcode::RECV);
            self.deliveries.received(flow, number, bytes).unwrap();
        }
    }

    /// Handles a datagram, which contains its source.
    fn datagram(&mut self, at: usize, wc: &Wc, bytes: &[u8]) {
        assert_eq!((wc.opcode, wc.wc_flags.contains(WcFlags::GRH)), (WcOpcode::RECV, true));
        let (header, payload) = bytes.split_at(GRH_BYTES);
        let from = self.gids.iter().position(|gid| gid.0[12..] == header[32..36]);
        let from = from.expect("a node's address");
        assert_eq!(header[36..40], self.gids[self.members[at].node].0[12..], "sent to another node");
        let account = self.numbers.get(&(from, wc.src_qp)).expect("a queue pair of the sending node");
        let flow = flow(*account, self.members[at].account);
        self.deliveries.received(flow, number_of(wc, payload), payload).unwrap();
    }

    /// Ends a queue pair, with the other end of its connection, and creates new ones.
    fn renew(&mut self, at: usize) {
        let ends: Vec<usize> = [Some(at), self.members[at].peer].into_iter().flatten().collect();
        self.end(&ends, None);
        for at in &ends {
            let account = self.next_account();
            let member = &mut self.members[*at];
            member.renew(&self.nodes[member.node], account);
            self.numbers.insert((member.node, member.qp.qp_num()), account);
        }
        if let [a, b] = ends[..] {
            for (from, to) in [(a, b), (b, a)] {
                let (writer, target) = two(&mut self.members, from, to);
                writer.check_image(&*target.mr);
                writer.adopt_image(&*target.mr);
            }
            self.connect(a, b);
        }
    }

    /// Ends queue pairs: all posted requests complete or are flushed, and no acknowledged message is missing. Queue
    /// pairs of a crashed node are not checked.
    pub(super) fn end(&mut self, ends: &[usize], dead: Option<usize>) {
        let is_alive = |member: &Member| Some(member.node) != dead;
        for at in ends {
            let member = &mut self.members[*at];
            if is_alive(member) {
                member.fail();
            }
        }
        self.take();
        for at in ends {
            let member = &self.members[*at];
            let incoming = member.peer.map(|peer| flow(self.members[peer].account, member.account));
            if is_alive(member) {
                self.ledger.drained(member.account).unwrap();
                incoming.into_iter().for_each(|flow| self.deliveries.closed(flow).unwrap());
                let expected = u32::from(self.nodes[member.node].shared.is_some());
                assert_eq!(member.last_told, expected, "LAST_WQE_REACHED");
            } else {
                self.ledger.forgotten(member.account);
                incoming.into_iter().for_each(|flow| self.deliveries.forgotten(flow));
            }
        }
    }

    pub(super) fn check_counter(&self, node: usize) {
        let life = self.nodes[node].life;
        let is_here =
            |did: &Did| matches!(did, Did::Add { node: at, life: of } if *at == node && *of == life);
        let sends = self.members.iter().flat_map(|member| &member.sends);
        let outstanding = sends.filter(|(.., did)| is_here(did)).count();
        self.nodes[node].counter.check(outstanding as u64);
    }

    /// Returns the numbers of messages received over RC, over UC and as datagrams.
    pub fn received_counts(&self) -> [u64; 3] {
        self.received
    }
}

//! A client that violates the protocol.

use std::sync::Arc;
use std::time::Instant;

use farcall_link::bootstrap::{Features, Grants, Hello, Welcome};
use farcall_link::{Connection, LocalSlice, Plan, QpSizes, Region, RegionId, Remote, RequestPath, Ticket};
use farcall_rpc::wire::*;
use farcall_verbs::{Access, CqInitAttr, Endpoint, RawCq, Wc};

use super::{ECHO, LOST, World};

/// A client that writes or sends arbitrary messages to its mailbox.
pub struct Rogue {
    pub qp: Connection,
    pub cq: Box<dyn RawCq>,
    pub memory: Arc<Region>,
    pub replies: Arc<Region>,
    pub memory_id: RegionId,
    pub welcome: Welcome,
    /// Number of its next message.
    pub seq: Seq,
    pub sends: bool,
}

impl Rogue {
    /// Creates a client that sends one valid message first, so that both ends can access each other's memory without a
    /// handshake.
    pub fn connect(world: &mut World, preset: &str) -> Self {
        let mut rogue = Self::connect_with(world, preset, Features::KICK);
        rogue.send(rogue.header().encode(), true);
        if rogue.welcome.mailbox_byte.is_some() {
            rogue.tell(0, &[rogue.seq.0 as u8]);
        }
        let (start, now) = (Instant::now(), world.now());
        while rogue.replies.load_acquire(rogue.slot()) == 0 {
            assert!(start.elapsed() < LOST, "no answer to an honest message");
            world.server.progress(now);
        }
        rogue.seq = rogue.seq.next();
        rogue
    }

    pub fn connect_with(world: &mut World, preset: &str, features: Features) -> Self {
        let nic = world.nic.clone();
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let config = QpSizes {
            send_depth: 64,
            recv_depth: 16,
            signal_every: 4,
            inline_max_bytes: 0,
            sges_max: 1,
            access,
        };
        let mut qp = Connection::new(&nic, farcall_link::Transport::Rc, &*cq, config, None).unwrap();
        qp.post_empty_receives(config.recv_depth).unwrap();
        let plan = Plan::named(preset).unwrap();
        let memory = Arc::new(Region::alloc(&**nic.pd(), 65_536, Access::LOCAL_WRITE).unwrap());
        let replies = Arc::new(Region::alloc(&**nic.pd(), plan.geometry.responses_bytes(), access).unwrap());
        let memory_id = qp.attach(Arc::clone(&memory));
        let hello = Hello {
            provider: nic.provider().into(),
            qp: qp.info(&nic),
            grants: Grants { messages: replies.remote(), ..Grants::default() },
            plan,
            features,
            thread: 0,
            resume: None,
            datagrams: None,
        };
        let now = world.now();
        let (_, welcome) = world.server.accept(&hello, now).unwrap();
        qp.connect(&nic, &welcome.qp).unwrap();
        let sends = plan.request == RequestPath::Send;
        Self { qp, cq, memory, replies, memory_id, welcome, seq: Seq::FIRST, sends }
    }

    /// Returns the offset of its message, and of the answer to it.
    pub fn slot(&self) -> usize {
        Slots::new(16, 4_224, REQUEST_HEADER_BYTES).offset(self.seq)
    }

    pub fn header(&self) -> RequestHeader {
        RequestHeader {
            seq: self.seq,
            flags: Mode::Reply.flags(),
            method: ECHO,
            session: self.welcome.session.tag(),
            incarnation: self.welcome.incarnation as u32,
            ..RequestHeader::default()
        }
    }

    /// Posts header words and, where the length requires it, a tail. Returns when they are in the mailbox.
    pub fn send(&mut self, words: [u64; 6], tail: bool) {
        // Zeros follow the header.
        for (i, word) in words.into_iter().chain([0; 4]).enumerate() {
            self.memory.store_relaxed(8 * i, word);
        }
        let first = FirstWord { seq: self.seq, len_bytes: 0, form: Form::Full };
        let first = FirstWord::decode(words[0]).unwrap_or(first);
        let slots = Slots::new(16, 4_224, REQUEST_HEADER_BYTES);
        if tail && first.len_bytes as usize <= slots.capacity() {
            let key = TailKey(self.welcome.tail_key.0);
            self.memory.store_relaxed(first.request_bytes() - TAIL_BYTES, key.tail(self.seq));
        }
        let piece = LocalSlice { region: self.memory_id, offset: 0, len_bytes: 4_224 };
        let to = Remote { grant: &self.welcome.grants.messages, offset: self.slot() };
        let posted = if self.sends { self.qp.send(piece) } else { self.qp.write(piece, to) };
        self.wait_for(posted.unwrap());
    }

    /// Writes into the array of announcement bytes, at an offset from its own byte.
    pub fn tell(&mut self, beyond: usize, bytes: &[u8]) {
        let mut grant = self.welcome.mailbox_byte.unwrap();
        grant.addr += beyond as u64;
        grant.len_bytes = bytes.len() as u64;
        self.memory.copy_in(0, bytes);
        let piece = LocalSlice { region: self.memory_id, offset: 0, len_bytes: bytes.len() };
        let posted = self.qp.write(piece, Remote { grant: &grant, offset: 0 });
        self.wait_for(posted.unwrap());
    }

    /// Wakes the server.
    pub fn kick(&mut self) {
        let posted = self.qp.kick(&self.welcome.grants.messages, Imm::Kick.encode());
        self.wait_for(posted.unwrap());
    }

    fn wait_for(&mut self, ticket: Ticket) {
        let start = Instant::now();
        while !self.qp.is_done(ticket) {
            assert!(start.elapsed() < LOST, "the message does not arrive");
            let mut wc = [Wc::default()];
            if self.cq.poll(&mut wc).unwrap() == 1 {
                self.qp.complete(&wc[0]);
            }
        }
    }

    pub fn answer(&self) -> (Status, String) {
        let words = [0, 8, 16].map(|at| self.replies.load_acquire(self.slot() + at));
        let header = ResponseHeader::decode(&words).unwrap();
        let mut text = Vec::new();
        self.replies.append_to(self.slot() + RESPONSE_HEADER_BYTES, header.len_bytes as usize, &mut text);
        (header.status, String::from_utf8(text).unwrap())
    }
}

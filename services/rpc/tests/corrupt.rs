//! A server whose results are corrupt: their checksums never match.

mod support;

use std::sync::Arc;

use farcall_link::bootstrap::{Features, Grants, Hello, Secret, SessionId, Welcome};
use farcall_link::{
    AddressId, Completed, Connection, Datagrams, LocalSlice, Nic, QpSizes, Receive, Region, RegionId, Remote,
    RequestPath, ResponsePath, Transport,
};
use farcall_rpc::wire::*;
use farcall_rpc::*;
use farcall_verbs::{Access, CqInitAttr, Endpoint, Nanos, RawCq, Wc};
use std::time::Duration;

const KEY: TailKey = TailKey(77);

/// Answers every request with a result that is correct except for its checksum.
struct Corrupt {
    qp: Connection,
    cq: Box<dyn RawCq>,
    results: Arc<Region>,
    results_id: RegionId,
    replies: farcall_link::RemoteRegion,
    slots: Slots,
    response: ResponsePath,
    is_reliable: bool,
    datagrams: Option<(Datagrams, AddressId)>,
    /// The last result, which is sent again on request over unreliable transports.
    last: Option<LocalSlice>,
}

impl Corrupt {
    fn accept(nic: &Nic, hello: &Hello) -> (Self, Welcome) {
        let geometry = hello.plan.geometry;
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let config = QpSizes {
            send_depth: 64,
            recv_depth: 64,
            signal_every: 4,
            inline_max_bytes: 0,
            sges_max: 1,
            access,
        };
        let mut qp = Connection::new(nic, hello.plan.transport, &*cq, config, None).unwrap();
        let region = |len_bytes| Arc::new(Region::alloc(&**nic.pd(), len_bytes, access).unwrap());
        let (mailbox, results) = (region(geometry.mailbox_bytes()), region(geometry.responses_bytes()));
        let mailbox_id = qp.attach(Arc::clone(&mailbox));
        if hello.plan.request == RequestPath::Send {
            let whole = [LocalSlice { region: mailbox_id, offset: 0, len_bytes: geometry.mailbox_bytes() }];
            let receives = qp.receive_chain(&[Receive { local: &whole, tag: 0 }; 16]);
            qp.post_receives(&receives, 0..16).unwrap();
        } else if hello.plan.transport != Transport::Ud {
            qp.post_empty_receives(config.recv_depth).unwrap();
        }
        qp.connect(nic, &hello.qp).unwrap();
        if hello.plan.transport == Transport::Ud {
            post_receives(&mut qp, mailbox_id, config.recv_depth);
        }
        let results_id = qp.attach(Arc::clone(&results));
        let welcome = Welcome {
            provider: nic.provider().into(),
            qp: qp.info(nic),
            grants: Grants { messages: mailbox.remote(), results: results.remote() },
            plan: hello.plan,
            features: Features::KICK | Features::CHECKSUM,
            incarnation: 1,
            threads: 1,
            session: SessionId([1; 16]),
            secret: Secret([2; 16]),
            tail_key: Secret(KEY.0),
            resumed: None,
            request_bytes_max: 1 << 20,
            result_bytes_max: 1 << 20,
            mailbox_byte: None,
        };
        let datagrams = hello.datagrams.map(|client| {
            let mut pair = Datagrams::new(nic, &*cq, config, None).unwrap();
            pair.start().unwrap();
            let peer = pair.add_peer(nic, &client).unwrap();
            pair.attach(Arc::clone(&mailbox));
            assert_eq!(pair.attach(Arc::clone(&results)), results_id);
            (pair, peer)
        });
        let slots = Slots::new(geometry.window, geometry.response_slot_bytes, RESPONSE_HEADER_BYTES);
        let (response, replies) = (hello.plan.response, hello.grants.messages);
        let is_reliable = hello.plan.transport.is_reliable() && datagrams.is_none();
        let last = None;
        (
            Self { qp, cq, results, results_id, replies, slots, response, is_reliable, datagrams, last },
            welcome,
        )
    }

    /// Stores a result for message `seq` in its slot, and also writes, sends or announces it to the client.
    fn answer(&mut self, seq: Seq, crc_is_wrong: bool) {
        let piece = self.place(seq, crc_is_wrong);
        self.hand_over(piece);
    }

    /// Stores a result for message `seq` in its slot.
    fn place(&self, seq: Seq, crc_is_wrong: bool) -> LocalSlice {
        let at = self.slots.offset(seq);
        let payload = b"sixteen bytes ok";
        let header = ResponseHeader {
            seq,
            len_bytes: payload.len() as u32,
            total_len_bytes: payload.len() as u32,
            flags: ResponseFlags::CHECKSUM,
            credits: 16,
            ..ResponseHeader::default()
        };
        let crc = KEY.checksum(&ResponseHeader::checked_words(&header.encode()), payload);
        let words = ResponseHeader { crc: crc ^ u32::from(crc_is_wrong), ..header }.encode();
        self.results.copy_in(at + RESPONSE_HEADER_BYTES, payload);
        self.results.store_relaxed(at + self.slots.tail_at(payload.len()), KEY.tail(seq));
        for (i, word) in words.into_iter().enumerate() {
            self.results.store_relaxed(at + 8 * i, word);
        }
        let len_bytes = message_bytes(RESPONSE_HEADER_BYTES, payload.len());
        LocalSlice { region: self.results_id, offset: at, len_bytes }
    }

    /// Stores the head of a message of `len_bytes` bytes in its slot, and also writes or sends it to the client.
    fn claim(&mut self, seq: Seq, len_bytes: u32) {
        let at = self.slots.offset(seq);
        self.results.store_relaxed(at, FirstWord { seq, len_bytes, form: Form::Full }.encode());
        let piece = LocalSlice { region: self.results_id, offset: at, len_bytes: 64 };
        self.hand_over(piece);
    }

    fn hand_over(&mut self, piece: LocalSlice) {
        self.last = Some(piece);
        if let Some((pair, client)) = &mut self.datagrams {
            pair.send(piece, *client).unwrap();
            return;
        }
        let to = Remote { grant: &self.replies, offset: piece.offset };
        let posted = match self.response {
            ResponsePath::Send => self.qp.send(piece),
            ResponsePath::NotifyThenFetch => self.qp.send(LocalSlice { len_bytes: 8, ..piece }),
            _ => self.qp.write(piece, to),
        };
        posted.unwrap();
    }

    /// Announces a result, whatever its slot contains.
    fn tell(&mut self, seq: Seq, len_bytes: u32) {
        let unused = self.slots.offset(Seq::FIRST.before());
        self.results.store_relaxed(unused, FirstWord { seq, len_bytes, form: Form::Full }.encode());
        self.hand_over(LocalSlice { region: self.results_id, offset: unused, len_bytes: 8 });
    }

    fn poll(&mut self) {
        let mut wcs = [Wc::default(); 16];
        let got = self.cq.poll(&mut wcs).unwrap();
        let mut is_asked = false;
        for wc in &wcs[..got] {
            match &mut self.datagrams {
                Some((pair, _)) if pair.qp_num() == wc.qp_num => drop(pair.complete(wc)),
                // A wake-up, or a repeated request.
                _ => is_asked |= matches!(self.qp.complete(wc), Completed::Received { .. }),
            }
        }
        if let (true, Some(last), true) = (is_asked, self.last, !self.is_reliable) {
            self.hand_over(last);
        }
    }
}

/// Posts `count` receives for short datagrams.
fn post_receives(qp: &mut Connection, region: RegionId, count: u32) {
    const BYTES: usize = 256;
    let piece = |at| [LocalSlice { region, offset: at * BYTES, len_bytes: BYTES }];
    let pieces: Vec<[LocalSlice; 1]> = (0..count as usize).map(piece).collect();
    let receives: Vec<Receive<'_>> = pieces.iter().map(|local| Receive { local, tag: 0 }).collect();
    let chain = qp.receive_chain(&receives);
    qp.post_receives(&chain, 0..receives.len()).unwrap();
}

/// Makes a call whose result is already in its slot.
fn call<P: Path>(
    client: &mut Caller<P>,
    server: &mut Corrupt,
    now: &mut Nanos,
) -> Result<Vec<u8>, CallError> {
    client.submit(support::ECHO, b"", CallContext::default(), *now).unwrap();
    finish(client, server, now)
}

/// Waits for the end of the call.
fn finish<P: Path>(
    client: &mut Caller<P>,
    server: &mut Corrupt,
    now: &mut Nanos,
) -> Result<Vec<u8>, CallError> {
    let mut patience = support::Patience::new();
    loop {
        *now = *now + Duration::from_micros(1);
        client.progress(*now);
        server.poll();
        if let Some(done) = client.next_completion() {
            return done.result.map(<[u8]>::to_vec);
        }
        assert!(!patience.is_over(), "the call does not end; client {:?}", client.counters());
    }
}

fn results_that_stay_corrupt<P: Path>() {
    let nic = Nic::open(&farcall_softnic::SoftNic::new()).unwrap();
    let mut client = Caller::<P>::new(nic.clone(), CallerConfig::default().checksum(true)).unwrap();
    let hello = client.hello().unwrap();
    let (mut server, welcome) = Corrupt::accept(&nic, &hello);
    let mut now = Nanos(1);
    client.welcome(welcome, now).unwrap();
    server.answer(Seq::FIRST, true);
    let error = call(&mut client, &mut server, &mut now).unwrap_err();
    assert!(matches!(error, CallError::CorruptResult { .. }), "{error}");
    assert_eq!(error.executed(), Executed::Yes);
    // The connection remains open.
    server.answer(Seq::FIRST.next(), false);
    assert_eq!(call(&mut client, &mut server, &mut now).unwrap(), b"sixteen bytes ok");
    assert!(client.is_open());
}

#[test]
fn fails_only_the_call_whose_checksum_never_matches() {
    results_that_stay_corrupt::<FetchThenReply>();
    results_that_stay_corrupt::<Fetch>();
    results_that_stay_corrupt::<ServerReply>();
    results_that_stay_corrupt::<OverUc<ServerReply>>();
    results_that_stay_corrupt::<OverUc<DatagramReply>>();
    results_that_stay_corrupt::<OverUd<DatagramReply>>();
    results_that_stay_corrupt::<SendReply>();
    results_that_stay_corrupt::<BySend<NotifyThenFetch>>();
}

/// The client's requests, or the replies to them, are lost: no other corrupt result arrives.
#[test]
fn counts_a_corrupt_uc_result_once_despite_repeated_requests() {
    let nic = Nic::open(&farcall_softnic::SoftNic::new()).unwrap();
    let config = CallerConfig::default().checksum(true);
    let mut client = Caller::<OverUc<ServerReply>>::new(nic.clone(), config).unwrap();
    let (mut server, welcome) = Corrupt::accept(&nic, &client.hello().unwrap());
    let mut now = Nanos(1);
    client.welcome(welcome, now).unwrap();
    // From then on the two queue pairs are connected, and a WRITE arrives at once.
    server.answer(Seq::FIRST, false);
    assert_eq!(call(&mut client, &mut server, &mut now).unwrap(), b"sixteen bytes ok");
    client.submit(support::ECHO, b"", CallContext::default(), now).unwrap();
    server.answer(Seq::FIRST.next(), true);
    server.last = None;
    let asked_before = client.counters().kicks.get();
    let mut patience = support::Patience::new();
    while client.counters().kicks.get() < asked_before + 12 {
        now = now + Duration::from_micros(20);
        client.progress(now);
        server.poll();
        assert!(client.next_completion().is_none(), "the call ends");
        assert!(!patience.is_over(), "the client does not ask; {:?}", client.counters());
    }
    server.answer(Seq::FIRST.next(), false);
    assert_eq!(finish(&mut client, &mut server, &mut now).unwrap(), b"sixteen bytes ok");
}

/// Makes iterations of both sides until the client ends the connection, and returns the reason. The server claims in
/// the first word a length that exceeds a slot.
fn ending<P: Path>(client: &mut Caller<P>, server: &mut Corrupt, mut now: Nanos) -> String {
    let mut patience = support::Patience::new();
    while client.is_open() {
        assert!(!patience.is_over(), "the connection stays open");
        now = now + Duration::from_micros(1);
        client.progress(now);
        server.poll();
    }
    client.broken().unwrap().to_string()
}

#[test]
fn ends_the_connection_for_an_impossible_result() {
    fn check<P: Path>() {
        let nic = Nic::open(&farcall_softnic::SoftNic::new()).unwrap();
        let mut client = Caller::<P>::new(nic.clone(), CallerConfig::default()).unwrap();
        let (mut server, welcome) = Corrupt::accept(&nic, &client.hello().unwrap());
        let now = Nanos(1);
        client.welcome(welcome, now).unwrap();
        client.submit(support::ECHO, b"", CallContext::default(), now).unwrap();
        server.claim(Seq::FIRST, 1 << 29);
        let why = ending(&mut client, &mut server, now);
        assert!(why.contains("536870912 bytes in a slot"), "{why}");
        assert_eq!(client.counters().connections_closed.get(), 1);
        assert_eq!(client.pending(), 1, "the call waits for the next connection");
    }
    check::<FetchThenReply>();
    check::<Fetch>();
    check::<ServerReply>();
    check::<SendReply>();
    check::<BySend<NotifyThenFetch>>();
}

type NotifiedCaller = Caller<BySend<NotifyThenFetch>>;

fn notified_caller() -> (NotifiedCaller, Corrupt, Nanos) {
    let nic = Nic::open(&farcall_softnic::SoftNic::new()).unwrap();
    let mut client = NotifiedCaller::new(nic.clone(), CallerConfig::default()).unwrap();
    let (server, welcome) = Corrupt::accept(&nic, &client.hello().unwrap());
    client.welcome(welcome, Nanos(1)).unwrap();
    (client, server, Nanos(1))
}

#[test]
fn a_notice_with_a_wrong_length_costs_a_read_at_most() {
    for (claimed, second_reads) in [(0, 1), (15, 0), (u32::MAX, 0)] {
        let (mut client, mut server, mut now) = notified_caller();
        server.place(Seq::FIRST, false);
        server.tell(Seq::FIRST, claimed);
        assert_eq!(call(&mut client, &mut server, &mut now).unwrap(), b"sixteen bytes ok");
        assert_eq!(client.counters().second_reads.get(), second_reads, "{claimed} bytes");
    }
}

#[test]
fn rereads_a_result_that_was_announced_too_early() {
    let (mut client, mut server, mut now) = notified_caller();
    server.tell(Seq::FIRST, 16);
    client.submit(support::ECHO, b"", CallContext::default(), now).unwrap();
    let mut patience = support::Patience::new();
    while !client.has_completion() {
        assert!(!patience.is_over(), "the call does not end; client {:?}", client.counters());
        now = now + Duration::from_micros(1);
        client.progress(now);
        server.poll();
        if client.counters().failed_fetches.get() >= 5 {
            server.place(Seq::FIRST, false);
        }
    }
    assert_eq!(client.next_completion().unwrap().result.unwrap(), b"sixteen bytes ok");
    assert!(client.is_open());
}

#[test]
fn ends_the_connection_for_an_unexpected_notice() {
    fn check(tell: impl Fn(&mut Corrupt)) {
        let (mut client, mut server, now) = notified_caller();
        for _ in 0..2 {
            client.submit(support::ECHO, b"", CallContext::default(), now).unwrap();
        }
        tell(&mut server);
        let why = ending(&mut client, &mut server, now);
        assert!(why.contains("a notice of"), "{why}");
    }
    // Announced twice.
    check(|server| {
        server.answer(Seq::FIRST, false);
        server.tell(Seq::FIRST, 16);
    });
    // Not sent yet.
    check(|server| server.tell(Seq::FIRST.plus(2), 16));
    // No number.
    check(|server| server.hand_over(LocalSlice { region: server.results_id, offset: 64, len_bytes: 8 }));
}

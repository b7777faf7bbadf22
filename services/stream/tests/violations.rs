//! Tests a peer that WRITEs arbitrary data to any address: the stream breaks or continues; it never returns bytes that
//! were not written, and never panics.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use farcall_link::bootstrap::{Acceptor, Initiator, RefusalKind, StreamEnd, StreamReply, VersionRange};
use farcall_link::{Connection, LocalSlice, QpSizes, Region, RegionId, Remote, SplitMix64, Transport};
use farcall_stream::{
    Broken, OpenError, Stream, StreamConfig, StreamError, StreamListener, StreamOptions, StreamSocket,
    UnconnectedStream,
};
use farcall_verbs::{Access, CqInitAttr, Endpoint, Gid, Nanos, RawCq, Wc};
use support::nic;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const WORDS: [usize; 12] = [0, 64, 72, 80, 88, 96, 104, 128, 136, 144, 152, 184];
const RING_BYTES: usize = 8 << 10;

/// The other end of a stream, which may violate the protocol.
struct Peer {
    connection: Connection,
    cq: Box<dyn RawCq>,
    local: Arc<Region>,
    theirs: StreamEnd,
}

fn peer() -> (Peer, Stream) {
    let nic = nic();
    let cq = nic.context().create_cq(&CqInitAttr { cqe: 512, channel: None }).unwrap();
    let config = QpSizes {
        send_depth: 64,
        recv_depth: 64,
        sges_max: 1,
        signal_every: 1,
        inline_max_bytes: 0,
        access: ACCESS,
    };
    let mut connection = Connection::new(&nic, Transport::Rc, &*cq, config, None).unwrap();
    connection.post_empty_receives(64).unwrap();
    let region = |len| Arc::new(Region::alloc(&**nic.pd(), len, ACCESS).unwrap());
    let (words, ring, local) = (region(192), region(RING_BYTES), region(4_096));
    // The connection also keeps the regions registered.
    for region in [&local, &words, &ring] {
        connection.attach(Arc::clone(region));
    }
    let ours = StreamEnd {
        provider: nic.provider().into(),
        qp: connection.info(&nic),
        words: words.remote(),
        ring: ring.remote(),
        is_in_order: true,
        may_use_channel: true,
    };
    let config = StreamConfig::default().ring_bytes(RING_BYTES).ring_bytes_max(64 << 10);
    let (stream, theirs) = Stream::accept(&nic, config, &ours).unwrap();
    connection.connect(&nic, &theirs.qp).unwrap();
    (Peer { connection, cq, local, theirs }, stream)
}

impl Peer {
    fn write(&mut self, word: usize, value: u64, imm: Option<u32>) {
        let mut wcs = [Wc::default(); 16];
        let got = self.cq.poll(&mut wcs).unwrap();
        wcs[..got].iter().for_each(|wc| _ = self.connection.complete(wc));
        if self.connection.room() == 0 {
            return;
        }
        let at = 8 * (word % 64);
        self.local.store_release(at, value);
        let from = LocalSlice { region: RegionId::FIRST, offset: at, len_bytes: 8 };
        let to = Remote { grant: &self.theirs.words, offset: word };
        let _ = match imm {
            Some(imm) => self.connection.write_imm(from, to, imm),
            None => self.connection.write(from, to),
        };
    }
}

#[test]
fn breaks_or_continues_a_stream_for_arbitrary_peer_writes() {
    let mut broken = 0;
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let (mut peer, mut stream) = peer();
        let mut bytes = vec![0; 3_000];
        for step in 0..150_u64 {
            let word = WORDS[(random.next_u64() % 12) as usize];
            let value = match random.next_u64() % 5 {
                0 => random.next_u64(),
                1 => u64::MAX - random.next_u64() % 3,
                2 => ((random.next_u64() % 4) << 48) | (random.next_u64() % 9_000),
                _ => random.next_u64() % 20_000,
            };
            let imm = match random.next_u64() % 3 {
                0 => Some(random.next_u64() as u32),
                1 => Some((random.next_u64() % 9_000) as u32 | ((random.next_u64() % 8 / 7) as u32) << 31),
                _ => None,
            };
            peer.write(word, value, imm);
            stream.progress(Nanos(step * 10_000_000));
            // These bytes were never written: the ring still contains its initial zeros.
            match stream.read(&mut bytes) {
                Ok(count) => assert!(bytes[..count].iter().all(|byte| *byte == 0)),
                Err(StreamError::WouldBlock | StreamError::Reset(_)) => {}
                Err(error) => panic!("{error}"),
            }
            let _ = (stream.write(&bytes), stream.fill(1).map(<[u8]>::len), stream.arm());
            if random.next_u64().is_multiple_of(50) {
                stream.finish();
            }
        }
        broken += u32::from(stream.broken().is_some_and(|broken| matches!(broken, Broken::Protocol(_))));
    }
    assert!(broken > 10, "{broken} of 40 streams were broken by words that cannot be");
}

#[test]
fn refuses_an_invalid_end_with_a_reason() {
    let nic = nic();
    let good = UnconnectedStream::new(&nic, StreamConfig::default()).unwrap().end();
    let with = |change: fn(&mut StreamEnd)| {
        let mut end = good.clone();
        change(&mut end);
        Stream::accept(&nic, StreamConfig::default(), &end).map(drop).unwrap_err()
    };
    assert_eq!(with(|end| end.provider = "ibv".into()).kind, RefusalKind::Provider);
    assert_eq!(with(|end| end.words.len_bytes = 191).kind, RefusalKind::OutOfRange);
    assert_eq!(with(|end| end.ring.len_bytes = 0).kind, RefusalKind::OutOfRange);
    assert_eq!(with(|end| end.ring.len_bytes = 1 << 40).kind, RefusalKind::OutOfRange);
    assert_eq!(with(|end| end.qp.qp_num = 0xff_fff0).kind, RefusalKind::Resources);
    let long = with(|end| end.ring.len_bytes = 1 << 40).to_string();
    assert!(long.contains(&(1_u64 << 40).to_string()) && long.contains("4096"), "{long}");
}

/// Processes of one host authorize each other by their users, which TCP does not identify.
#[test]
fn rejects_a_tcp_fallback_between_addresses_of_one_host() {
    let nic = nic();
    // A client that claims to be on another host but connects from this one.
    let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    listener.set_nonblocking(true);
    let (unconnected, mut client) = (
        UnconnectedStream::new(&nic, StreamConfig::default()).unwrap(),
        Initiator::new(VersionRange::CURRENT),
    );
    let mut ours = unconnected.end();
    for (provider, gid) in
        [(nic.provider(), [192, 0, 2, 7]), ("ibv", [192, 0, 2, 7]), ("ibv", [127, 0, 0, 1])]
    {
        ours.provider = provider.into();
        ours.qp.gid = Gid::from_ipv4(gid.into()).0;
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(&client.open_stream(&ours)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4_096];
        let got = loop {
            let _ = listener.accept();
            match socket.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                got => break got.unwrap(),
            }
        };
        let answer = client.feed_stream_opened(&bytes[..got]);
        assert!(!matches!(answer, Ok((_, None | Some(StreamReply::OverChannel)))), "{answer:?}");
    }

    // A server on this host that impersonates another one.
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut socket, _) = impostor.accept().unwrap();
        socket.write_all(&Acceptor::new(VersionRange::CURRENT).stream_over_channel()).unwrap();
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        all
    });
    let error = StreamSocket::connect(&nic, address, StreamOptions::default()).map(drop).unwrap_err();
    assert!(
        matches!(error, OpenError::Unusable(_))
            && farcall_verbs::with_sources(&error).contains("of this host"),
        "{error}"
    );
    // It received the request and no other bytes.
    let asked = impostor.join().unwrap();
    let (taken, said) = Acceptor::new(VersionRange::CURRENT).feed_open_stream(&asked).unwrap();
    assert!(said.is_some() && taken == asked.len());
}

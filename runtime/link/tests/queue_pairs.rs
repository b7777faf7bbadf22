//! Connections and datagrams on the software RNIC: chains, lists of SGEs, receives with data, shared receives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_link::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Access, CqInitAttr, RawCq, Wc};

const CONFIG: QpSizes = QpSizes {
    send_depth: 16,
    recv_depth: 16,
    sges_max: 2,
    signal_every: 4,
    inline_max_bytes: 0,
    access: Access::all(),
};

/// One end: a queue pair with one region of 4 KiB.
struct End<Q> {
    qp: Q,
    cq: Box<dyn RawCq>,
    region: Arc<Region>,
    id: RegionId,
}

fn end<Q: std::ops::DerefMut<Target = QueuePair>>(nic: &Nic, make: impl FnOnce(&dyn RawCq) -> Q) -> End<Q> {
    let cq = nic.context().create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
    let region = Arc::new(Region::alloc(&**nic.pd(), 4096, Access::all()).unwrap());
    let mut qp = make(&*cq);
    let id = qp.attach(Arc::clone(&region));
    End { qp, cq, region, id }
}

fn connections(transport: Transport) -> (Nic, [End<Connection>; 2]) {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let make = || end(&nic, |cq| Connection::new(&nic, transport, cq, CONFIG, None).unwrap());
    let (mut a, mut b) = (make(), make());
    let (info_a, info_b) = (a.qp.info(&nic), b.qp.info(&nic));
    a.qp.connect(&nic, &info_b).unwrap();
    b.qp.connect(&nic, &info_a).unwrap();
    (nic, [a, b])
}

impl<Q: std::ops::DerefMut<Target = QueuePair>> End<Q> {
    fn piece(&self, offset: usize, len_bytes: usize) -> LocalSlice {
        LocalSlice { region: self.id, offset, len_bytes }
    }

    fn text(&self, offset: usize, len_bytes: usize) -> String {
        let mut out = Vec::new();
        self.region.append_to(offset, len_bytes, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Returns the next `count` completions.
    fn completed(&mut self, count: usize) -> Vec<Completed> {
        let (mut all, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        while all.len() < count {
            assert!(Instant::now() < until, "only {all:?}");
            let mut wcs = [Wc::default(); 1];
            if self.cq.poll(&mut wcs).unwrap() == 1 {
                all.push(self.qp.complete(&wcs[0]));
            }
        }
        all
    }
}

fn send<'a>(local: &'a [LocalSlice], is_signalled: bool) -> WorkRequest<'a> {
    WorkRequest { operation: Operation::Send, local, imm: None, is_signalled }
}

#[test]
fn a_chain_of_lists_goes_into_receives_with_data() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (_nic, [mut a, mut b]) = connections(transport);
        let places = [b.piece(0, 64), b.piece(64, 64)];
        let mut receives = b.qp.receive_chain(&[
            Receive { local: &places[..1], tag: 7 },
            Receive { local: &places[1..], tag: 8 },
        ]);
        b.qp.post_receives(&receives, 0..2).unwrap();
        a.region.copy_in(0, b"remote fetching");
        let pieces = [a.piece(7, 8), a.piece(0, 6)];
        let mut chain = a.qp.chain(&[send(&pieces, false), send(&pieces[1..], true)]).unwrap();
        let ticket = a.qp.post_chain(&mut chain, 3).unwrap();
        assert_eq!((a.qp.outstanding(), a.qp.is_done(ticket)), (2, false));
        assert_eq!(a.completed(1), [Completed::Send { tag: 3, ticket }]);
        assert_eq!((a.qp.outstanding(), a.qp.is_done(ticket)), (0, true));
        let received = |tag, len_bytes| Completed::Received { tag, len_bytes, imm: None };
        assert_eq!(b.completed(2), [received(7, 14), received(8, 6)]);
        assert_eq!((b.text(0, 14), b.text(64, 6)), ("fetchingremote".into(), "remote".into()));
        // Both are posted again: with another tag, and the other one of the two receives.
        receives.set_tag(1..2, 9);
        b.qp.post_receives(&receives, 1..2).unwrap();
        b.qp.post_empty_receives(1).unwrap();
        a.qp.post(&send(&pieces, true), 4).unwrap();
        assert_eq!(b.completed(1), [received(9, 14)]);
    }
}

#[test]
fn requests_posted_together_complete_each_under_its_own_tag() {
    let (_nic, [mut a, b]) = connections(Transport::Rc);
    let grant = b.region.remote();
    a.region.copy_in(0, b"abcdef");
    let pieces = [a.piece(4, 2), a.piece(0, 2), a.piece(2, 2)];
    let write = |offset, local| {
        let operation = Operation::Write(Remote { grant: &grant, offset });
        WorkRequest { operation, local, imm: None, is_signalled: true }
    };
    let requests = [(write(0, &pieces[..1]), 5), (write(10, &pieces[1..]), 7)];
    let ticket = a.qp.post_together(&requests).unwrap();
    let tags: Vec<_> = a
        .completed(2)
        .into_iter()
        .map(|completed| match completed {
            Completed::Send { tag, .. } => tag,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((tags, a.qp.is_done(ticket)), (vec![5, 7], true));
    assert_eq!((b.text(0, 2), b.text(10, 4)), ("ef".into(), "abcd".into()));
    // If one is outside the grant, none is posted.
    let outside = [(write(0, &pieces[..1]), 1), (write(4095, &pieces[..1]), 2)];
    assert!(matches!(a.qp.post_together(&outside), Err(PostRefused::OutsideOfGrant { .. })));
    assert_eq!(a.qp.outstanding(), 0);
    let many = [requests[0]; TOGETHER_MAX];
    assert!(matches!(a.qp.post_together(&many), Err(PostRefused::Full { depth: 16, .. })));
}

#[test]
fn memory_that_exists_is_read_into_and_comes_back() {
    let (nic, [mut a, b]) = connections(Transport::Rc);
    b.region.copy_in(8, b"remote");
    let memory =
        Arc::new(Region::register(&**nic.pd(), vec![b'.'; 10]).unwrap_or_else(|(e, _)| panic!("{e}")));
    let grant = b.region.remote();
    let read = |offset| Operation::Read(Remote { grant: &grant, offset });
    assert!(a.qp.post_lending(Arc::clone(&memory), read(4096), 1).is_err(), "outside of the grant");
    assert_eq!(Arc::strong_count(&memory), 1, "what was refused is not kept");
    a.qp.post_lending(Arc::clone(&memory), read(8), 1).unwrap();
    // Later requests do not keep it.
    let into = a.piece(0, 8);
    a.qp.read(into, Remote { grant: &grant, offset: 0 }, 2).unwrap();
    let Err(memory) = Arc::try_unwrap(memory) else { panic!("the pair keeps it while it is read into") };
    a.completed(1);
    let memory = Arc::into_inner(memory).expect("nothing names it any more");
    assert_eq!(memory.into_memory().unwrap(), b"remote\0\0\0\0");
}

#[test]
fn a_chain_prepared_for_other_regions_is_refused() {
    let (_nic, [a, mut b]) = connections(Transport::Rc);
    let pieces = [a.piece(0, 8)];
    let mut chain = a.qp.chain(&[send(&pieces, true)]).unwrap();
    assert!(matches!(b.qp.post_chain(&mut chain, 0), Err(PostRefused::NotAttached { .. })));
    let receives = a.qp.receive_chain(&[Receive { local: &pieces, tag: 0 }]);
    assert!(matches!(b.qp.post_receives(&receives, 0..1), Err(PostRefused::NotAttached { .. })));
}

#[test]
fn a_pair_is_drained_when_its_receives_with_data_are_flushed() {
    let (_nic, [mut a, mut b]) = connections(Transport::Rc);
    let place = [b.piece(0, 8)];
    let receives = b.qp.receive_chain(&[Receive { local: &place, tag: 0 }]);
    b.qp.post_receives(&receives, 0..1).unwrap();
    b.qp.close();
    assert!(!b.qp.is_drained(), "its receive names memory");
    assert_eq!(b.completed(1), [Completed::Flushed]);
    assert!(b.qp.is_drained());
    a.qp.close();
    assert!(a.qp.is_drained(), "nothing is under way");
}

#[test]
fn a_pair_is_drained_by_a_message_that_came_before_its_end() {
    let (_nic, [mut a, mut b]) = connections(Transport::Rc);
    let place = [b.piece(0, 8)];
    let receives = b.qp.receive_chain(&[Receive { local: &place, tag: 5 }]);
    b.qp.post_receives(&receives, 0..1).unwrap();
    let pieces = [a.piece(0, 8)];
    a.qp.post(&send(&pieces, true), 0).unwrap();
    a.completed(1);
    b.qp.close();
    assert!(!b.qp.is_drained(), "nobody took the message");
    assert_eq!(b.completed(1), [Completed::Received { tag: 5, len_bytes: 8, imm: None }]);
    assert!(b.qp.is_drained());
}

#[test]
fn completes_unsignalled_requests_when_a_pair_is_drained() {
    let (_nic, [mut a, b]) = connections(Transport::Rc);
    let pieces = [a.piece(0, 8)];
    let grant = b.region.remote();
    let operation = Operation::Write(Remote { grant: &grant, offset: 4088 });
    let request = WorkRequest { operation, local: &pieces, imm: None, is_signalled: false };
    a.qp.post(&request, 0).unwrap();
    a.qp.close();
    while !a.qp.is_drained() {
        a.completed(1);
    }
    let beyond = Operation::Write(Remote { grant: &grant, offset: 4089 });
    let refused = a.qp.post(&WorkRequest { operation: beyond, ..request }, 0);
    assert!(matches!(refused, Err(PostRefused::OutsideOfGrant { .. })));
}

#[test]
fn atomics_and_reads_bring_what_was_there() {
    let (_nic, [mut a, b]) = connections(Transport::Rc);
    b.region.store_relaxed(0, 40);
    let (grant, pieces) = (b.region.remote(), [a.piece(0, 8)]);
    let at = Remote { grant: &grant, offset: 0 };
    let operations = [
        Operation::FetchAdd { at, add: 2 },
        Operation::CompareSwap { at, compare: 42, swap: 7 },
        Operation::Read(at),
    ];
    for (operation, (found, left)) in operations.into_iter().zip([(40, 42), (42, 7), (7, 7)]) {
        a.qp.post(&WorkRequest { operation, local: &pieces, imm: None, is_signalled: true }, 1).unwrap();
        a.completed(1);
        assert_eq!((a.region.load_acquire(0), b.region.load_acquire(0)), (found, left), "{operation:?}");
    }
}

#[test]
fn datagrams_go_to_several_peers_into_shared_receives() {
    const GRH_BYTES: usize = 40;
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut shared = SharedReceives::new(&nic, 8).unwrap();
    let pool = Arc::new(Region::alloc(&**nic.pd(), 4096, Access::LOCAL_WRITE).unwrap());
    let id = shared.attach(Arc::clone(&pool));
    let places: Vec<_> =
        (0..8).map(|at| [LocalSlice { region: id, offset: 64 * at, len_bytes: 64 }]).collect();
    let receives: Vec<_> = (0..).zip(&places).map(|(tag, place)| Receive { local: place, tag }).collect();
    let chain = shared.receive_chain(&receives);
    shared.post_receives(&chain, 0..8).unwrap();
    let make = |shared: Option<&SharedReceives>| {
        let mut end = end(&nic, |cq| Datagrams::new(&nic, cq, CONFIG, shared).unwrap());
        end.qp.start().unwrap();
        end
    };
    let (mut a, mut peers) = (make(None), [make(Some(&shared)), make(Some(&shared))]);
    a.region.copy_in(0, b"12345678");
    let pieces = [a.piece(0, 8)];
    for peer in &mut peers {
        let address = a.qp.add_peer(&nic, &peer.qp.info(&nic)).unwrap();
        let operation = Operation::SendTo(address);
        a.qp.post(&WorkRequest { operation, local: &pieces, imm: Some(5), is_signalled: true }, 0).unwrap();
        let [Completed::Received { tag, len_bytes: 48, imm: Some(5) }] = peer.completed(1)[..] else {
            panic!("no datagram");
        };
        let mut text = [0; 8];
        pool.copy_out(64 * tag as usize + GRH_BYTES, &mut text);
        assert_eq!(&text, b"12345678");
    }
    // The queue pairs keep the regions that their receives name.
    drop(shared);
    assert!(Arc::strong_count(&pool) > 1);
    drop(peers);
    assert_eq!(Arc::strong_count(&pool), 1);
}

#[test]
fn keeps_detached_memory_and_peers_until_requests_complete() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut ends = [0, 1].map(|_| end(&nic, |cq| Datagrams::new(&nic, cq, CONFIG, None).unwrap()));
    ends.iter_mut().for_each(|end| end.qp.start().unwrap());
    let [mut a, b] = ends;
    let info = b.qp.info(&nic);
    let peer = a.qp.add_peer(&nic, &info).unwrap();
    let region = Arc::new(Region::alloc(&**nic.pd(), 4096, Access::LOCAL_WRITE).unwrap());
    let id = a.qp.attach(Arc::clone(&region));
    let local = [LocalSlice { region: id, offset: 0, len_bytes: 8 }];
    let request =
        WorkRequest { operation: Operation::SendTo(peer), local: &local, imm: None, is_signalled: true };
    let mut chain = a.qp.chain(&[request]).unwrap();
    a.qp.post_chain(&mut chain, 0).unwrap();
    a.qp.remove_peer(peer);
    a.qp.detach(id);
    assert_eq!(Arc::strong_count(&region), 2, "a send names it");
    a.completed(1);
    assert_eq!(Arc::strong_count(&region), 1);
    // Chains prepared for it are refused, even after others have received the same identifiers.
    assert_eq!(a.qp.attach(Arc::clone(&a.region)), id);
    assert_eq!(a.qp.add_peer(&nic, &info).unwrap(), peer);
    assert!(matches!(a.qp.post_chain(&mut chain, 0), Err(PostRefused::NotAttached { .. })));
    let ticket = a.qp.send(local[0], peer).unwrap();
    a.completed(1);
    assert!(a.qp.is_done(ticket));
    // No request is in flight, so it is released at once.
    let before = Arc::strong_count(&a.region);
    a.qp.detach(id);
    assert_eq!(Arc::strong_count(&a.region), before - 1);
}

#[test]
fn a_chain_to_a_destination_that_was_taken_away_is_refused() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut a = end(&nic, |cq| Datagrams::new(&nic, cq, CONFIG, None).unwrap());
    a.qp.start().unwrap();
    let info = a.qp.info(&nic);
    let peer = a.qp.add_peer(&nic, &info).unwrap();
    let local = [a.piece(0, 8)];
    let request =
        WorkRequest { operation: Operation::SendTo(peer), local: &local, imm: None, is_signalled: true };
    let mut chain = a.qp.chain(&[request]).unwrap();
    a.qp.remove_peer(peer);
    assert_eq!(a.qp.add_peer(&nic, &info).unwrap(), peer, "another destination has its name");
    assert!(matches!(a.qp.post_chain(&mut chain, 0), Err(PostRefused::NotAttached { .. })));
}

#[test]
fn receives_that_stay_posted_keep_their_own_memory_and_no_other() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut a = end(&nic, |cq| Datagrams::new(&nic, cq, CONFIG, None).unwrap());
    a.qp.start().unwrap();
    let regions = [0, 1].map(|_| Arc::new(Region::alloc(&**nic.pd(), 4096, Access::LOCAL_WRITE).unwrap()));
    let ids = [0, 1].map(|at| a.qp.attach(Arc::clone(&regions[at])));
    let local = [LocalSlice { region: ids[0], offset: 0, len_bytes: 64 }];
    let chain = a.qp.receive_chain(&[Receive { local: &local, tag: 0 }]);
    a.qp.post_receives(&chain, 0..1).unwrap();
    ids.into_iter().for_each(|id| a.qp.detach(id));
    let peer = a.qp.add_peer(&nic, &a.qp.info(&nic)).unwrap();
    a.qp.remove_peer(peer);
    assert_eq!(regions.each_ref().map(Arc::strong_count), [2, 1], "a receive names the first");
    drop(a);
    assert_eq!(Arc::strong_count(&regions[0]), 1);
}

#[test]
fn drains_a_datagram_pair_after_its_destinations_were_removed() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut ends = [0, 1].map(|_| end(&nic, |cq| Datagrams::new(&nic, cq, CONFIG, None).unwrap()));
    ends.iter_mut().for_each(|end| end.qp.start().unwrap());
    let [mut a, b] = ends;
    let peer = a.qp.add_peer(&nic, &b.qp.info(&nic)).unwrap();
    let local = [a.piece(0, 8)];
    let request =
        WorkRequest { operation: Operation::SendTo(peer), local: &local, imm: None, is_signalled: false };
    a.qp.post(&request, 0).unwrap();
    a.qp.remove_peer(peer);
    a.qp.close();
    let until = Instant::now() + Duration::from_secs(10);
    while !a.qp.is_drained() {
        assert!(Instant::now() < until, "it does not drain");
        let mut wc = [Wc::default()];
        if a.cq.poll(&mut wc).unwrap() == 1 {
            a.qp.complete(&wc[0]);
        }
    }
}

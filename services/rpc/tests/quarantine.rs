//! Reconnects while the old peer is stopped inside an access. It may still access the old memory, which is therefore
//! replaced.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_link::Nic;
use farcall_link::bootstrap::Hello;
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::*;
use support::*;

/// The software RNIC with queue pairs that report, while the test requires it, that a peer is inside an access.
struct Haunted {
    pd: Arc<dyn ProtectionDomain>,
    is_inside: Arc<AtomicBool>,
}

struct HauntedQp {
    qp: Box<dyn RawQp>,
    is_inside: Arc<AtomicBool>,
}

impl Haunted {
    fn nic() -> (Nic, Arc<AtomicBool>) {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        let is_inside = Arc::new(AtomicBool::new(false));
        let pd = Arc::new(Self { pd: Arc::clone(nic.pd()), is_inside: Arc::clone(&is_inside) });
        (nic.with_pd(pd), is_inside)
    }
}

impl ProtectionDomain for Haunted {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.pd.alloc_mr(len_bytes, access)
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        // SAFETY: contract of this function (`ProtectionDomain::reg_mr`), which is that of the inner domain: the
        // memory stays mapped until the region, which is returned unchanged, is deregistered.
        unsafe { self.pd.reg_mr(addr, len_bytes, access) }
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        Ok(Box::new(HauntedQp { qp: self.pd.create_qp(attr)?, is_inside: Arc::clone(&self.is_inside) }))
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        self.pd.create_srq(attr)
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        self.pd.create_ah(attr)
    }
}

impl RawQp for HauntedQp {
    fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    fn qp_type(&self) -> QpType {
        self.qp.qp_type()
    }

    fn state(&self) -> QpState {
        self.qp.state()
    }

    fn cap(&self) -> QpCap {
        self.qp.cap()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.qp.modify(attr)
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        // SAFETY: contract of this function (`RawQp::post_send`): the memory of `wrs` stays valid until the
        // completion. The inner queue pair, to which the requests are passed unchanged, requires the same.
        unsafe { self.qp.post_send(wrs) }
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> std::result::Result<(), PostError> {
        // SAFETY: contract of this function (`RawQp::post_recv`): the memory of `wrs` stays valid until the
        // completion. The inner queue pair, to which the requests are passed unchanged, requires the same.
        unsafe { self.qp.post_recv(wrs) }
    }

    fn places_in_order(&self, mr: &dyn RawMr) -> bool {
        self.qp.places_in_order(mr)
    }

    fn is_quiesced(&self) -> bool {
        !self.is_inside.load(Ordering::Relaxed) && self.qp.is_quiesced()
    }
}

/// A client with one executed call whose response it has not polled, and one that the server has not received; then
/// the connection breaks.
fn break_with_calls_in_flight(world: &mut World, client: &mut Caller<FetchThenReply>) {
    client.submit(ECHO, b"executed", CallContext::default(), world.now()).unwrap();
    world.serve(1);
    client.submit(ECHO, b"unseen", CallContext::default(), world.now()).unwrap();
    client.disconnect(Broken::HungUp);
}

/// Reconnects. Returns the two keys that are exchanged.
fn reconnect(world: &mut World, client: &mut Caller<FetchThenReply>) -> (u32, u32) {
    let hello: Hello = client.hello().unwrap();
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    assert!(welcome.resumed.is_some());
    let keys = (hello.grants.messages.rkey, welcome.grants.results.rkey);
    client.welcome(welcome, now).unwrap();
    keys
}

fn finish_both(world: &mut World, client: &mut Caller<FetchThenReply>) {
    assert_eq!(world.finish(client).1.unwrap(), b"executed");
    assert_eq!(world.finish(client).1.unwrap(), b"unseen");
    assert_eq!(world.call(client, ECHO, b"later").unwrap(), b"later");
    assert_eq!(world.server.handler().executed, 3);
}

#[test]
fn replaces_client_memory_that_an_old_server_still_accesses() {
    for is_inside in [false, true] {
        let (nic, inside) = Haunted::nic();
        let mut world = World::new();
        let mut client = Caller::<FetchThenReply>::new(nic, CallerConfig::default()).unwrap();
        world.connect(&mut client).unwrap();
        let (before, _) = reconnect(&mut world, &mut client);
        break_with_calls_in_flight(&mut world, &mut client);
        inside.store(is_inside, Ordering::Relaxed);
        let (after, _) = reconnect(&mut world, &mut client);
        assert_eq!(
            before != after,
            is_inside,
            "memory is replaced where somebody may touch it, and only there"
        );
        finish_both(&mut world, &mut client);
    }
}

#[test]
fn replaces_server_memory_that_an_old_client_still_accesses() {
    for is_inside in [false, true] {
        let (nic, inside) = Haunted::nic();
        let mut world = World::on(nic, ResponderConfig::default());
        let plain = Nic::open(&SoftNic::new()).unwrap();
        let mut client = Caller::<FetchThenReply>::new(plain, CallerConfig::default()).unwrap();
        world.connect(&mut client).unwrap();
        let (_, before) = reconnect(&mut world, &mut client);
        break_with_calls_in_flight(&mut world, &mut client);
        inside.store(is_inside, Ordering::Relaxed);
        let (_, after) = reconnect(&mut world, &mut client);
        assert_eq!(
            before != after,
            is_inside,
            "memory is replaced where somebody may touch it, and only there"
        );
        finish_both(&mut world, &mut client);
    }
}

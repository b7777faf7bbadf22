//! Tests that need internal state: a peer stopped inside an access is simulated by a hazard that is not cleared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_shm::{SharedMem, hazard};
use farcall_verbs::{
    Access, AhAttr, CqInitAttr, MrMemory, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp,
    Revoked,
};

use super::Qp;
use crate::SoftNic;
use crate::shm_transport::ShmTransport;
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::HAZARD_WAIT;
use crate::verbs::mr::Mr;

const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Two connected queue pairs, each in its own domain.
struct Scene {
    shm: Arc<ShmTransport>,
    a: Qp,
    b: Qp,
    b_pd: u32,
}

fn make(shm: &Arc<ShmTransport>, pd: u32) -> Qp {
    let cq = SoftNic::open().unwrap().create_cq(&CqInitAttr { cqe: 16, channel: None }).unwrap();
    let attr = QpInitAttr {
        send_cq: &*cq,
        recv_cq: &*cq,
        srq: None,
        cap: QpCap::default(),
        qp_type: QpType::Rc,
        sq_sig_all: false,
    };
    let mut qp = Qp::create(shm, &Arc::new(Events::default()), pd, &attr).unwrap();
    qp.modify(&QpAttr::init(ACCESS)).unwrap();
    qp
}

impl Scene {
    fn new() -> Self {
        let shm = ShmTransport::get().unwrap();
        let b_pd = shm.core.process.next_number();
        let (mut a, mut b) = (make(&shm, shm.core.process.next_number()), make(&shm, b_pd));
        let path = AhAttr { dgid: shm.core.process.gids[0], port_num: 1, ..AhAttr::default() };
        a.modify(&QpAttr::rtr(b.qp_num(), 0, path, Mtu::Mtu4096)).unwrap();
        b.modify(&QpAttr::rtr(a.qp_num(), 0, path, Mtu::Mtu4096)).unwrap();
        b.modify(&QpAttr::rts(0)).unwrap();
        Self { shm, a, b, b_pd }
    }

    fn region(&self) -> Box<Mr> {
        let mr = Mr::allocate(&self.shm, self.b_pd, 4096, ACCESS).unwrap();
        self.grant(&mr, self.b_pd);
        Box::new(mr)
    }

    /// Grants the region as if a peer had requested it; revocation does not wait for regions that were never granted.
    fn grant(&self, mr: &Mr, pd: u32) {
        for receive in [false, true] {
            self.shm.core.process.regions.grant(mr.rkey(), pd, receive).unwrap();
        }
    }

    /// Returns the memory in which a peer of `b` publishes its hazard.
    fn way_into_b(&self) -> SharedMem {
        self.b.pair.inbound.lock().mem.clone()
    }
}

#[test]
fn a_peer_inside_an_access_is_remembered_across_a_reset() {
    let mut scene = Scene::new();
    let (mem, region) = (scene.way_into_b(), scene.region());
    hazard::enter(&mem, hazard::of_region(region.rkey()));
    scene.b.modify(&QpAttr::to(QpState::Reset)).unwrap();
    assert!(!scene.b.is_quiesced(), "a new life forgot who is inside the old one");
    let other = scene.region();
    assert_eq!(region.dereg(), Revoked::Quarantined);
    assert_eq!(other.dereg(), Revoked::Now, "it is in another region");
    hazard::leave(&mem);
    assert!(scene.b.is_quiesced());
}

#[test]
fn remembers_a_peer_inside_an_access_after_pair_destruction() {
    for how in [hazard::RECEIVES, 0] {
        let scene = Scene::new();
        let (mem, region, later) = (scene.way_into_b(), scene.region(), scene.region());
        hazard::enter(&mem, if how == 0 { hazard::of_region(region.rkey()) } else { how });
        let Scene { a, b, .. } = scene;
        drop(b);
        assert_eq!(region.dereg(), Revoked::Quarantined);
        hazard::leave(&mem);
        assert_eq!(later.dereg(), Revoked::Now);
        drop(a);
    }
}

#[test]
fn releases_a_region_despite_receives_of_another_domain() {
    let scene = Scene::new();
    let mem = scene.way_into_b();
    hazard::enter(&mem, hazard::RECEIVES);
    let pd = scene.shm.core.process.next_number();
    let elsewhere = Mr::allocate(&scene.shm, pd, 4096, ACCESS).unwrap();
    scene.grant(&elsewhere, pd);
    assert_eq!(Box::new(elsewhere).dereg(), Revoked::Now);
    assert_eq!(scene.region().dereg(), Revoked::Quarantined, "this one may hold the receive");
    hazard::leave(&mem);
    assert_eq!(scene.region().dereg(), Revoked::Now);
}

#[test]
fn flushes_receives_only_after_peer_access_is_revoked() {
    let mut scene = Scene::new();
    // The state changes to ERR before the queue pair is closed: a poll in between must not flush receives.
    // SAFETY: no memory is named.
    unsafe { scene.b.post_recv(&[farcall_verbs::RecvWr::new(1, &[])]) }.unwrap();
    let pair = scene.b.pair.clone();
    assert!(pair.apply_event(crate::shm_transport::state::StateEvent::Fail));
    let mut wc = [farcall_verbs::Wc::default(); 2];
    assert_eq!(pair.poll_failures(true, true, &mut wc), 0, "flushed while the peer was still let in");
    pair.close();
    assert!(pair.apply_event(crate::shm_transport::state::StateEvent::PeerAccessRevoked));
    assert_eq!(pair.poll(true, true, &mut wc), 0, "a failure before all that succeeded");
    assert_eq!(pair.poll_failures(true, true, &mut wc), 1);
}

#[test]
fn returns_program_memory_only_after_the_peer_has_left() {
    for hazard in [None, Some(hazard::RECEIVES)] {
        let scene = Scene::new();
        let mem = scene.way_into_b();
        let mut heap = [0_u64; 64];
        // SAFETY: `heap` outlives its region, and no code accesses it until then.
        let mr = unsafe {
            Mr::register(&scene.shm, scene.b_pd, MrMemory::new(heap.as_mut_ptr().cast(), 512), ACCESS, 0)
        };
        let mr = Box::new(mr.unwrap());
        hazard::enter(&mem, hazard.unwrap_or(hazard::of_region(mr.rkey())));
        scene.grant(&mr, scene.b_pd);
        let has_left = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(2 * HAZARD_WAIT);
                has_left.store(true, Ordering::SeqCst);
                hazard::leave(&mem);
            });
            assert_eq!(mr.dereg(), Revoked::Now);
            assert!(has_left.load(Ordering::SeqCst), "the memory was given back under a peer inside it");
        });
    }
}

#[test]
fn memory_of_a_region_is_given_back_unless_a_peer_is_inside() {
    let scene = Scene::new();
    let mem = scene.way_into_b();
    for is_inside in [true, false] {
        // Its neighbours share its descriptor, and keep the mapping of both alive.
        let (_before, region, _after) = (scene.region(), scene.region(), scene.region());
        let at = region.addr();
        // SAFETY: the address is that of the region's own memory, which is mapped.
        unsafe { at.write_volatile(7) };
        if is_inside {
            hazard::enter(&mem, hazard::of_region(region.rkey()));
        }
        let (revoked, left) = if is_inside { (Revoked::Quarantined, 7) } else { (Revoked::Now, 0) };
        assert_eq!(region.dereg(), revoked);
        // SAFETY: the neighbours keep the memory mapped, and no other code accesses it.
        assert_eq!(unsafe { at.read_volatile() }, left);
        hazard::leave(&mem);
    }
}

#[test]
fn deregisters_ungranted_memory_without_waiting() {
    let scene = Scene::new();
    let mem = scene.way_into_b();
    let mr = Mr::allocate(&scene.shm, scene.b_pd, 4096, ACCESS).unwrap();
    hazard::enter(&mem, hazard::of_region(mr.rkey()));
    assert_eq!(Box::new(mr).dereg(), Revoked::Now);
    hazard::leave(&mem);
}

//! Threads share objects, as libibverbs permits: they post, poll, query, modify, create and destroy concurrently.

use std::collections::HashSet;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farcall_layout::{Context, Cq, Pd, Qp, QpAttr, QpInitAttr, mask};
use farcall_verbs::{RecvWr, SendFlags, SendWr, Sge, Wc};

use crate::library::{Library, device, inline, zeroed};

const MESSAGES_EACH: u64 = 400;
const POSTERS: u64 = 3;
const MESSAGE_BYTES: u64 = 64;
/// Number of messages to send from; each is received into a buffer of its own.
const SLOTS: u64 = 64;

/// Objects that the threads share, as the C interface permits.
struct Shared {
    library: &'static Library,
    context: *mut Context,
    pd: *mut Pd,
    cq: *mut Cq,
    from: *mut Qp,
    to: *mut Qp,
    memory: u64,
    lkey: u32,
}

// SAFETY: several threads may use the objects concurrently (man ibv_post_send and all others).
unsafe impl Sync for Shared {}

/// Moves a pair to RTS, with a pair of the same device as its peer.
pub fn connect(library: &Library, context: *mut Context, qp: *mut Qp, peer: *mut Qp) {
    // SAFETY: zero is valid for every field; live objects.
    unsafe {
        let mut attr: QpAttr = zeroed();
        let mut gid = [0_u8; 16];
        assert_eq!((library.query_gid)(context, 1, 0, &raw mut gid), 0);
        (attr.port_num, attr.qp_access_flags, attr.path_mtu, attr.min_rnr_timer) = (1, 7, 3, 1);
        (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.grh.dgid) = (1, 1, gid);
        (attr.retry_cnt, attr.rnr_retry, attr.dest_qp_num) = (7, 7, (*peer).qp_num);
        let steps = [
            mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
            mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC,
        ];
        for (state, needed) in (1..).zip(steps) {
            attr.qp_state = state;
            assert_eq!((library.modify_qp)(qp, &raw mut attr, mask::STATE | needed), 0);
        }
    }
}

impl Shared {
    fn pair(&self) -> *mut Qp {
        // SAFETY: zero is valid for every field; live objects.
        unsafe {
            let mut attr: QpInitAttr = zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (self.cq, self.cq, 2);
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (64, 64);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            let made = (self.library.create_qp)(self.pd, &raw mut attr);
            assert!(!made.is_null());
            made
        }
    }

    fn connect(&self, qp: *mut Qp, peer: *mut Qp) {
        connect(self.library, self.context, qp, peer);
    }

    /// Posts one message, and a receive for it in the other half of the memory. Retries while the queue is full.
    fn post(&self, wr_id: u64) {
        let slot = |number: u64| {
            [Sge {
                addr: self.memory + number * MESSAGE_BYTES,
                length: MESSAGE_BYTES as u32,
                lkey: self.lkey,
            }]
        };
        let (from, into) = (slot(wr_id % SLOTS), slot(SLOTS + wr_id));
        // SAFETY: the lists outlive the posts; only the C type requires the longer lifetime.
        let lists: [&'static [Sge]; 2] =
            unsafe { [&from, &into].map(|list| std::slice::from_raw_parts(list.as_ptr(), 1)) };
        let (mut recv, mut send) = (RecvWr::new(wr_id | 1 << 63, lists[1]), SendWr::send(wr_id, lists[0]));
        send.send_flags = SendFlags::SIGNALED;
        // SAFETY: live pairs, memory that outlives the requests.
        unsafe {
            let (mut bad_recv, mut bad_send) = (ptr::null_mut(), ptr::null_mut());
            patiently(|| inline::post_recv(self.to, &raw mut recv, &raw mut bad_recv));
            patiently(|| inline::post_send(self.from, &raw mut send, &raw mut bad_send));
        }
    }

    /// Creates, queries and destroys objects that other threads do not use.
    fn make_and_destroy(&self) {
        // SAFETY: zero is valid for every field; live objects of this thread, in a live domain and queue.
        unsafe {
            let (mut attr, mut init): (QpAttr, QpInitAttr) = (zeroed(), zeroed());
            let mine = self.pair();
            self.connect(mine, mine);
            assert_eq!((self.library.query_qp)(self.from, &raw mut attr, -1, &raw mut init), 0);
            assert_eq!(attr.qp_state, 3);
            attr.qp_access_flags = 7;
            let changed = mask::STATE | mask::ACCESS_FLAGS;
            assert_eq!((self.library.modify_qp)(self.to, &raw mut attr, changed), 0);
            let mut bytes = vec![0_u8; 4096];
            let mr = (self.library.reg_mr)(self.pd, bytes.as_mut_ptr().cast(), 4096, 7);
            assert!(!mr.is_null());
            assert_eq!((self.library.dereg_mr)(mr), 0);
            let cq = (self.library.create_cq)(self.context, 4, ptr::null_mut(), ptr::null_mut(), 0);
            assert_eq!((self.library.destroy_cq)(cq), 0);
            assert_eq!((self.library.destroy_qp)(mine), 0);
            assert_eq!((self.library.destroy_cq)(self.cq), libc::EBUSY);
            assert_eq!((self.library.dealloc_pd)(self.pd), libc::EBUSY);
        }
    }
}

/// Retries until there is room.
fn patiently(mut post: impl FnMut() -> i32) {
    loop {
        match post() {
            0 => return,
            number => assert_eq!(number, libc::ENOMEM),
        }
        std::thread::yield_now();
    }
}

fn open() -> Shared {
    let library = Library::get();
    // SAFETY: the order of calls is that of the man pages; the memory is leaked.
    unsafe {
        let context = (library.open_device)(device());
        let pd = (library.alloc_pd)(context);
        let cq = (library.create_cq)(context, 4096, ptr::null_mut(), ptr::null_mut(), 0);
        let memory = Box::leak(
            vec![7_u8; ((SLOTS + POSTERS * MESSAGES_EACH) * MESSAGE_BYTES) as usize].into_boxed_slice(),
        );
        let mr = (library.reg_mr)(pd, memory.as_mut_ptr().cast(), memory.len(), 7);
        let (from, to) = (ptr::null_mut(), ptr::null_mut());
        let mut shared =
            Shared { library, context, pd, cq, from, to, memory: memory.as_ptr() as u64, lkey: (*mr).lkey };
        (shared.from, shared.to) = (shared.pair(), shared.pair());
        shared.connect(shared.from, shared.to);
        shared.connect(shared.to, shared.from);
        shared
    }
}

/// Three threads post to one pair, two poll its completion queue, and two create, query, modify and destroy. Every
/// completion is returned once, to one of the pollers.
#[test]
fn threads_share_objects() {
    let shared = open();
    let seen = Mutex::new(HashSet::new());
    let (polled, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let all = 2 * POSTERS * MESSAGES_EACH;
    std::thread::scope(|scope| {
        let (shared, seen, polled, done) = (&shared, &seen, &polled, &done);
        for poster in 0..POSTERS {
            scope.spawn(move || (0..MESSAGES_EACH).for_each(|i| shared.post(poster * MESSAGES_EACH + i)));
        }
        for _ in 0..2 {
            scope.spawn(move || {
                let mut wcs = [Wc::default(); 8];
                while polled.load(Ordering::Relaxed) < all {
                    // SAFETY: a live queue.
                    let taken = unsafe { inline::poll_cq(shared.cq, &mut wcs) };
                    assert!(taken >= 0);
                    for wc in &wcs[..taken as usize] {
                        assert!(wc.status.is_success(), "{wc:?}");
                        assert!(seen.lock().unwrap().insert(wc.wr_id), "{wc:?} twice");
                    }
                    polled.fetch_add(taken as u64, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    shared.make_and_destroy();
                }
            });
        }
    });
    assert_eq!(seen.lock().unwrap().len() as u64, all);
}

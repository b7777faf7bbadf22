//! Forked children: they share sockets with their parent, and none of its threads.

use std::cell::RefCell;
use std::sync::Once;

use crate::{confined, descriptors, direct_calls, epoll, sock, thread, waiters};

/// A lock that is held while a thread forks.
trait RingLock {}
impl<T> RingLock for T {}

thread_local! {
    static HELD: RefCell<Option<Box<dyn RingLock>>> = const { RefCell::new(None) };
}

/// Makes forks known, before the first object that they concern.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        thread::record_process();
        // SAFETY: handlers of the right types, in a library that is never unloaded.
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
            libc::atexit(descriptors::at_exit);
        }
    });
}

extern "C" fn before() {
    sock::before_fork();
    let held = (
        epoll::lock_for_fork(),
        sock::lock_for_fork(),
        waiters::lock_for_fork(),
        direct_calls::lock_for_fork(),
        farcall_stats::lock_for_fork(),
        farcall_shm::fork::lock(),
    );
    HELD.set(Some(Box::new(held)));
}

extern "C" fn in_parent() {
    HELD.set(None);
}

extern "C" fn in_child() {
    thread::enter_child();
    HELD.set(None);
    if !confined::is_confined() {
        farcall_stats::renew_in_child();
    }
    epoll::enter_child();
    waiters::enter_child();
    direct_calls::enter_child();
}

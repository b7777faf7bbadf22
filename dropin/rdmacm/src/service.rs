//! The thread that waits for messages. It blocks, so it costs nothing while there are none. It works in turns
//! ([`own_libibverbs::turn`]), so that it does not count as a thread of the program.

use std::os::fd::OwnedFd;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::connection_manager::ConnectionManager;
use crate::errno::{Errno, system};
use crate::own_libibverbs;
use crate::token::WAKE;

/// Stack size of the thread, whose calls are not deeply nested.
const STACK_BYTES: usize = 256 << 10;

/// How long an exiting process waits until its peers on other hosts have confirmed that.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

struct Service {
    manager: Mutex<ConnectionManager>,
    wake: Arc<OwnedFd>,
    /// Set when the process exits: the thread then disconnects from its peers.
    is_ending: AtomicBool,
    /// Set when the peers have confirmed it.
    has_left: AtomicBool,
    /// The process that started it: a forked child does not have its parent's thread, and starts another one.
    pid: u32,
}

static SERVICE: Mutex<Option<&'static Service>> = Mutex::new(None);

/// Locks the connection manager of this process, whose thread is started on first use.
///
/// # Errors
/// Returns the kernel's error if no descriptor or thread can be created.
pub fn connection_manager() -> Result<MutexGuard<'static, ConnectionManager>, Errno> {
    let mut known = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let service = match known.filter(|service| service.pid == process::id()) {
        Some(service) => service,
        None => *known.insert(start()?),
    };
    drop(known);
    Ok(service.manager.lock().unwrap_or_else(PoisonError::into_inner))
}

fn start() -> Result<&'static Service, Errno> {
    let made = || {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&poll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok((rustix::io::fcntl_dupfd_cloexec(&poll, 0)?, poll, wake))
    };
    let (poll, for_manager, wake) =
        made().map_err(system::<rustix::io::Errno>("no descriptor for the connection manager"))?;
    let service: &'static Service = Box::leak(Box::new(Service {
        manager: Mutex::new(ConnectionManager::new(for_manager, wake.clone())),
        wake,
        is_ending: AtomicBool::new(false),
        has_left: AtomicBool::new(false),
        pid: process::id(),
    }));
    own_libibverbs::find();
    let thread = std::thread::Builder::new().name("farcall-rdmacm".into()).stack_size(STACK_BYTES);
    let (tell, told) = mpsc::channel();
    let signals = Signals::block();
    let started = thread.spawn(move || {
        own_libibverbs::turn(|| {
            let _ = tell.send(());
        });
        let mut deadline = None;
        loop {
            deadline = wait_and_work(service, &poll, deadline);
        }
    });
    drop(signals);
    started.map_err(system("no thread for the connection manager"))?;
    // Wait for the first turn, after which libibverbs knows the thread as Farcall's own. A new thread also maps and
    // unmaps memory, and a program that believes that it has only one thread may be patching those functions
    // (libfabric's memory monitor does). A thread inside of them would crash.
    let _ = told.recv();
    Ok(service)
}

/// Waits for events and handles them. Returns the deadline of the next timer.
fn wait_and_work(service: &Service, poll: &OwnedFd, deadline: Option<Instant>) -> Option<Instant> {
    let timeout = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 32];
    // An interrupted wait is treated as a timeout.
    let ready: &[_] = epoll::wait(poll, &mut events[..], timeout.as_ref()).map_or(&[], |(ready, _)| ready);
    let mut next = None;
    own_libibverbs::turn(|| {
        let mut manager = service.manager.lock().unwrap_or_else(PoisonError::into_inner);
        for event in ready {
            match event.data.u64() {
                WAKE => drop(rustix::io::read(&service.wake, &mut [0_u8; 8])),
                token => manager.readable(token),
            }
        }
        manager.run_timers(Instant::now());
        if service.is_ending.load(Ordering::Acquire) {
            manager.shutdown();
            service.has_left.store(!manager.is_leaving(), Ordering::Release);
        }
        next = manager.next_deadline();
    });
    next
}

/// Enables connections with other hosts.
///
/// # Errors
/// Returns the error of libibverbs or of the kernel.
pub fn open_remote(manager: &mut ConnectionManager) -> Result<(), Errno> {
    manager.open_remote()?;
    disconnect_at_exit();
    Ok(())
}

/// Makes this process disconnect from its peers on other hosts when it exits normally, and wait until they have
/// confirmed it.
fn disconnect_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `leave` exists until the process exits, because the library is never unloaded (`-z nodelete`).
        if unsafe { libc::atexit(leave) } != 0 {
            tracing::warn!("peers on other hosts are not notified when this process ends");
        }
    });
}

/// The thread disconnects, because the exiting thread may hold any lock, and its thread-local variables may already be
/// destroyed.
extern "C" fn leave() {
    let Ok(Some(service)) = SERVICE.try_lock().map(|known| *known) else { return };
    // Not in a forked child, whose connections belong to its parent.
    if service.pid != process::id() {
        return;
    }
    service.is_ending.store(true, Ordering::Release);
    let _ = rustix::io::write(&service.wake, &1_u64.to_ne_bytes());
    let began = Instant::now();
    while !service.has_left.load(Ordering::Acquire) && began.elapsed() < EXIT_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Blocks all signals for threads that are started while this exists.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Self {
        // SAFETY: signal sets are plain integers, and initialized by the calls.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `self.0` is the initialized set that `block` has saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

//! Signals that arrive while a call waits: the handler that runs decides whether the call continues (SA_RESTART) or
//! ends with EINTR.
//!
//! A wait in `ppoll` ends with EINTR whichever handler ran. If all handlers of the program agree, that does not matter.
//! Otherwise the signals are blocked during the wait, which a signalfd ends; the pending signals then show which
//! handlers are about to run.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32};

use libc::{sigaction, sigset_t};

use crate::{libc_next, own_fds};

/// Effect of the handlers of the program on calls that they interrupt.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Handlers {
    /// All of them let the calls continue, or there are none.
    Restart = 1,
    /// None lets them continue.
    Interrupt = 2,
    /// Some of them do.
    Differ = 3,
}

/// Signals of faults of the thread itself, which are not blocked.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
const LAST_SIGNAL: c_int = 64;

/// Number of changes of handlers, and the number at which `HANDLERS` was determined.
static CHANGES: AtomicU32 = AtomicU32::new(1);
static DETERMINED_AT: AtomicU32 = AtomicU32::new(0);
static HANDLERS: AtomicU8 = AtomicU8::new(0);

/// Called after the program changed a handler.
pub fn after_change() {
    CHANGES.fetch_add(1, SeqCst);
}

/// Returns whether the handler of a signal lets calls continue; `None` if it has no handler.
fn restarts(signal: c_int) -> Option<bool> {
    // SAFETY: zeros are a valid action; it is only queried.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one action, to `action`, and changes none.
    let done = unsafe { libc_next::sigaction(signal, std::ptr::null(), &raw mut action) };
    let is_handled = done == 0 && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    is_handled.then_some(action.sa_flags & libc::SA_RESTART != 0)
}

/// Returns what the handlers of the program do.
pub fn handlers() -> Handlers {
    let changes = CHANGES.load(SeqCst);
    if DETERMINED_AT.load(SeqCst) != changes {
        let (mut restart, mut interrupt) = (false, false);
        for does in (1..=LAST_SIGNAL).filter_map(restarts) {
            (restart, interrupt) = (restart || does, interrupt || !does);
        }
        let handlers = match (restart, interrupt) {
            (true, true) => Handlers::Differ,
            (false, true) => Handlers::Interrupt,
            _ => Handlers::Restart,
        };
        HANDLERS.store(handlers as u8, Relaxed);
        DETERMINED_AT.store(changes, SeqCst);
    }
    match HANDLERS.load(Relaxed) {
        3 => Handlers::Differ,
        2 => Handlers::Interrupt,
        _ => Handlers::Restart,
    }
}

fn empty_set() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it is initialised by the call.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Returns the set of all signals except those of faults.
fn all() -> sigset_t {
    let mut set = empty_set();
    // SAFETY: a valid set.
    unsafe {
        libc::sigfillset(&raw mut set);
        for fault in FAULTS {
            libc::sigdelset(&raw mut set, fault);
        }
    }
    set
}

/// Returns a descriptor that is readable while signals of [`all`] are pending.
fn pending_fd() -> Option<RawFd> {
    static FD: OnceLock<Option<RawFd>> = OnceLock::new();
    let make = || {
        let set = all();
        // SAFETY: a valid set; the descriptor is new.
        let fd = unsafe { libc_next::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        // SAFETY: `signalfd` has just made this descriptor, which has no other owner.
        (fd >= 0).then(|| own_fds::adopt(unsafe { OwnedFd::from_raw_fd(fd) })).flatten()
    };
    FD.get_or_init(make).filter(|fd| own_fds::is_own(*fd))
}

/// Signals of this thread are blocked.
pub struct BlockedSignals {
    before: sigset_t,
    fd: RawFd,
}

impl BlockedSignals {
    /// Blocks them; `None` if it cannot be found out which of them become pending.
    pub fn new() -> Option<Self> {
        let fd = pending_fd()?;
        let (set, mut before) = (all(), empty_set());
        // SAFETY: valid sets.
        (unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, &raw mut before) } == 0)
            .then_some(())?;
        let blocked = Self { before, fd };
        // One that the program itself blocks would end every wait at once.
        (!blocked.any_pending(|is_blocked, _| is_blocked)).then_some(blocked)
    }

    /// Returns a descriptor that is readable while a signal is pending.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    fn any_pending(&self, matches: impl Fn(bool, c_int) -> bool) -> bool {
        let mut pending = empty_set();
        // SAFETY: a valid set.
        unsafe { libc::sigpending(&raw mut pending) };
        // SAFETY: valid sets, and numbers of signals.
        (1..=LAST_SIGNAL).any(|signal| unsafe {
            libc::sigismember(&raw const pending, signal) == 1
                && matches(libc::sigismember(&raw const self.before, signal) == 1, signal)
        })
    }

    /// Returns whether a handler that is about to run ends the call.
    pub fn will_be_interrupted(&self) -> bool {
        self.any_pending(|is_blocked, signal| !is_blocked && restarts(signal) == Some(false))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // Delivers what is pending.
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

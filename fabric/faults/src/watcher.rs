//! The only thread that fault injection needs. It sleeps until a provider's channel has an event or completions are
//! due, so that programs are woken only at the right times.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_verbs::{Error, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An object that is serviced when one of its descriptors is readable.
pub(crate) trait Watched: Send + Sync {
    fn service(&self);
}

pub(crate) struct Watcher {
    epoll: OwnedFd,
    watched: Mutex<HashMap<u64, Weak<dyn Watched>>>,
    /// Process of the thread; a forked child has no such thread.
    pid: u32,
}

static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

const OP: &str = "create_comp_channel";

impl Watcher {
    /// Returns this process's watcher, which is started with the first channel.
    pub(crate) fn get() -> Result<Arc<Self>> {
        let pid = std::process::id();
        let mut watcher = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = watcher.as_ref().filter(|watcher| watcher.pid == pid) {
            return Ok(watcher.clone());
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|error| Error::os(OP, "create an epoll descriptor (check RLIMIT_NOFILE)", error))?;
        let started = Arc::new(Self { epoll, watched: Mutex::default(), pid });
        let thread = started.clone();
        std::thread::Builder::new()
            .name("farcall-faults".into())
            .stack_size(256 << 10)
            .spawn(move || thread.run())
            .map_err(|error| Error::os(OP, "create a thread (check RLIMIT_NPROC)", error))?;
        Ok(watcher.insert(started).clone())
    }

    fn run(&self) {
        block_signals();
        let mut events = Vec::with_capacity(16);
        loop {
            events.clear();
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            if !matches!(waited, Ok(_) | Err(rustix::io::Errno::INTR)) {
                return;
            }
            for event in &events {
                let of = event.data.u64();
                let watched = self.lock().get(&of).and_then(Weak::upgrade);
                if let Some(watched) = watched {
                    watched.service();
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Weak<dyn Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Services `watched`, identified by `key`, whenever one of the descriptors is readable.
    pub(crate) fn watch(&self, key: u64, watched: Weak<dyn Watched>, fds: [BorrowedFd<'_>; 2]) -> Result<()> {
        self.lock().insert(key, watched);
        for fd in fds {
            epoll::add(&self.epoll, fd, EventData::new_u64(key), EventFlags::IN).map_err(|error| {
                Error::os(OP, "watch a descriptor (check fs.epoll.max_user_watches)", error)
            })?;
        }
        Ok(())
    }

    /// Stops servicing the object.
    pub(crate) fn forget(&self, key: u64, fds: [BorrowedFd<'_>; 2]) {
        self.lock().remove(&key);
        for fd in fds {
            let _ = epoll::delete(&self.epoll, fd.as_fd());
        }
    }
}

/// Blocks all signals: only the program's threads handle them.
fn block_signals() {
    // SAFETY: `all` is a local variable that `sigfillset` initialises before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

//! The service thread. It blocks in epoll, serves peers, detects their exit, and continues waiting requests of
//! application threads that sleep or do other work.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak, mpsc};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, request_short_slice};
use farcall_verbs::{Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::Way;
use super::clients::{Client, Next};
use super::liveness::Lifetime;
use super::peer::Peer;
use super::rendezvous::Block;
use super::service_work::{RETRY_LAST, RetryList};
use super::waker::Waker;

pub(crate) struct Service {
    epoll: DontForkFd,
    waker: Waker,
    next_token: AtomicU64,
    pub(super) watched: Mutex<HashMap<u64, Watched>>,
    pub(super) retries: RetryList,
    /// `true` if the last `accept` failed and a warning was logged.
    pub(super) has_shortage: AtomicBool,
    /// Held while the thread is not in `epoll_wait`.
    at_work: Mutex<()>,
    thread_id: AtomicU32,
}

/// Descriptor in the epoll set.
#[derive(Clone)]
pub(super) enum Watched {
    Listener(Arc<Block>),
    Client(Arc<Client>),
    /// Pidfd of a peer, watched until its exit is reported, even if another process owns the peer's block by then.
    Peer(Arc<Peer>),
    /// Pidfd of a process that sends datagrams to this one, and its instance.
    Sender(u64, Arc<Lifetime>),
    /// Socket with a peer's replies.
    Answers(Weak<Peer>),
    /// Descriptor of a transport.
    Served(Arc<dyn Served>),
}

/// A transport that has descriptors of its own.
pub(crate) trait Served: Send + Sync {
    /// Called by the service thread when one of the descriptors is readable. Must not block.
    fn ready(&self);
}

/// A descriptor that the service thread watches for a transport.
pub(crate) struct Watching(u64);

const WAKER_TOKEN: u64 = 0;
/// Token of all sockets with a handshake in progress.
const HELLO_TOKEN: u64 = 1;

impl Service {
    pub(super) fn new() -> Result<Self> {
        let what = "create the service thread's descriptors (check RLIMIT_NOFILE)";
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::os("epoll_create", what, e))?;
        let epoll = DontForkFd::new(epoll);
        let waker = Waker::create()?;
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKER_TOKEN), epoll::EventFlags::IN)
            .map_err(|e| Error::os("epoll_ctl", what, e))?;
        Ok(Self {
            epoll,
            waker,
            next_token: AtomicU64::new(HELLO_TOKEN + 1),
            watched: Mutex::default(),
            retries: RetryList::default(),
            has_shortage: AtomicBool::new(false),
            at_work: Mutex::default(),
            thread_id: AtomicU32::new(0),
        })
    }

    /// Returns the thread id of the service thread.
    pub(super) fn thread_id(&self) -> u32 {
        self.thread_id.load(Ordering::Acquire)
    }

    /// Pauses the service thread until the guard is dropped.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock()
    }

    /// Makes the service thread service completion queues whose application threads sleep.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Returns the event descriptor by which peers wake the service thread.
    pub(crate) fn waker_fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    /// Returns a token that was not used before.
    pub(super) fn next_token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, watched: Watched) -> Result<()> {
        let token = self.next_token();
        self.watched.lock().insert(token, watched);
        self.tell_of(fd, token, epoll::EventFlags::IN)
            .inspect_err(|_| drop(self.watched.lock().remove(&token)))
    }

    /// Watches a descriptor for a transport.
    pub(crate) fn watch_for(&self, fd: BorrowedFd<'_>, way: Arc<dyn Served>) -> Result<Watching> {
        let token = self.next_token();
        self.watched.lock().insert(token, Watched::Served(way));
        self.tell_of(fd, token, epoll::EventFlags::IN)
            .inspect_err(|_| drop(self.watched.lock().remove(&token)))?;
        Ok(Watching(token))
    }

    /// Suspends or resumes watching a descriptor of a transport.
    pub(crate) fn set_served(&self, fd: BorrowedFd<'_>, watching: &Watching, is_watched: bool) {
        let events = if is_watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(watching.0), events);
    }

    fn tell_of(&self, fd: BorrowedFd<'_>, token: u64, events: epoll::EventFlags) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), events)
            .map_err(|e| Error::os("epoll_ctl", "watch a descriptor", e))
    }

    /// Continues handshakes when a process has replied at `socket` or closed it.
    pub(super) fn watch_hello(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.tell_of(socket, HELLO_TOKEN, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
    }

    /// Stops watching `fd`.
    pub(super) fn delete(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Accepts peers that connect to a block.
    pub(super) fn listen(&self, block: &Arc<Block>) -> Result<()> {
        self.add(block.listener.as_fd(), Watched::Listener(block.clone()))
    }

    /// Watches a peer's pidfd and its replies.
    pub(super) fn watch(&self, peer: &Arc<Peer>) -> Result<()> {
        self.add(peer.life.pidfd.as_fd(), Watched::Peer(peer.clone()))?;
        // The socket was added for the handshake.
        self.delete(peer.socket.as_fd());
        let answers = Watched::Answers(Arc::downgrade(peer));
        self.add(peer.socket.as_fd(), answers).inspect_err(|_| self.unwatch(peer))
    }

    /// Stops watching a peer.
    pub(super) fn unwatch(&self, peer: &Arc<Peer>) {
        self.delete(peer.life.pidfd.as_fd());
        self.delete(peer.socket.as_fd());
        self.watched.lock().retain(|_, w| match w {
            Watched::Peer(watched) => !Arc::ptr_eq(watched, peer),
            Watched::Answers(weak) => weak.as_ptr() != Arc::as_ptr(peer),
            _ => true,
        });
    }

    fn turn(&self, way: &dyn Way) {
        let due = {
            let _at_work = self.at_work.lock();
            self.retries.resume_due()
        };
        let timeout =
            due.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Not on the heap: while memory of the program moves, the heap must not be written, and the lock that excludes
        // this is taken below.
        let mut room = [const { MaybeUninit::uninit() }; 32];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(e) => {
                tracing::error!("softnic service: epoll_wait: {e}");
                std::thread::sleep(RETRY_LAST);
                &[]
            }
        };
        let _at_work = self.at_work.lock();
        for event in events {
            self.serve(way, event.data.u64());
        }
    }

    /// Handles a descriptor that is ready.
    fn serve(&self, way: &dyn Way, token: u64) {
        if token == WAKER_TOKEN {
            self.waker.clear();
            return way.look_after_sleepers();
        }
        if token == HELLO_TOKEN {
            return self.retries.hurry();
        }
        let Some(watched) = self.watched.lock().get(&token).cloned() else { return };
        let keep = match watched {
            Watched::Listener(block) => {
                self.accept(&block);
                true
            }
            Watched::Client(client) => {
                let next = client.serve(way);
                self.wait_for(&client, token, next);
                next != Next::End
            }
            Watched::Answers(peer) => self.collect(&peer),
            Watched::Served(way) => {
                way.ready();
                true
            }
            Watched::Peer(peer) => {
                self.peer_ended(way, &peer);
                false
            }
            Watched::Sender(instance, life) => {
                self.sender_ended(way, instance, &life);
                false
            }
        };
        if !keep {
            self.watched.lock().remove(&token);
        }
    }

    /// Sets whether the client's socket is watched for requests or for space for replies.
    fn wait_for(&self, client: &Client, token: u64, next: Next) {
        let events = match next {
            Next::Questions => epoll::EventFlags::IN,
            Next::Room => epoll::EventFlags::OUT,
            Next::End => return,
        };
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.epoll, client.socket(), data, events) {
            tracing::warn!("softnic service: epoll_ctl: {error}");
        }
    }

    /// Receives a peer's replies and continues the requests that wait for them. Returns whether to keep watching.
    fn collect(&self, peer: &Weak<Peer>) -> bool {
        let Some(peer) = peer.upgrade() else { return false };
        let Ok(has_news) = peer.collect() else {
            // The peer has closed the socket. Only its pidfd indicates an exit, because a socket can also fail alone.
            self.delete(peer.socket.as_fd());
            return false;
        };
        if has_news {
            self.retries.hurry();
        }
        true
    }
}

/// Starts the service thread of the process of `way`.
pub(crate) fn start(way: Arc<dyn Way>) -> Result<()> {
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new()
        .name("farcall-softnic".into())
        .stack_size(256 << 10)
        .spawn(move || {
            block_signals();
            // Handshakes wait for this thread, and it sleeps most of the time.
            request_short_slice();
            IS_SERVICE.set(true);
            let service = &way.process().service;
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            service.thread_id.store(id, Ordering::Release);
            let _ = tell.send(());
            loop {
                service.turn(&*way);
            }
        })
        .map_err(|e| Error::os("start the service thread", "create a thread (check RLIMIT_NPROC)", e))?;
    // Waits until the thread id is stored, which distinguishes this thread from those of the program.
    let _ = told.recv();
    Ok(())
}

thread_local! {
    static IS_SERVICE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the caller is the service thread.
pub(crate) fn is_service_thread() -> bool {
    IS_SERVICE.get()
}

/// Blocks all signals, which are left to the program's own threads.
fn block_signals() {
    // SAFETY: all bytes zero are a valid `sigset_t`, and `all` is a local variable. The call changes the mask of this
    // thread only.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

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
use farcall_verbs::{Error, Result, with_sources};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::TransportBackend;
use super::clients::{Client, ClientAcceptor, NextInterest};
use super::liveness::ProcessLiveness;
use super::peer::Peer;
use super::rendezvous::Block;
use super::service_work::{RESUME_DELAY_MAX, ServiceWork, ServiceWorkList};
use super::waker::Waker;

pub(crate) struct Service {
    epoll: DontForkFd,
    waker: Waker,
    next_token: AtomicU64,
    watched: Mutex<HashMap<u64, WatchedFd>>,
    work_list: ServiceWorkList,
    acceptor: ClientAcceptor,
    /// Held while the thread is not in `epoll_wait`.
    working: Mutex<()>,
    thread_id: AtomicU32,
}

/// Descriptor in the epoll set.
#[derive(Clone)]
enum WatchedFd {
    Listener(Arc<Block>),
    Client(Arc<Client>),
    /// Pidfd of a peer, watched until its exit is reported, even if another process owns the peer's block by then.
    Peer(Arc<Peer>),
    /// Pidfd of a process that sends datagrams to this one, and its instance.
    Sender(u64, Arc<ProcessLiveness>),
    /// Socket with a peer's replies.
    Replies(Weak<Peer>),
    /// Descriptor of a transport.
    Handler(Arc<dyn FdHandler>),
}

/// A transport that has descriptors of its own.
pub(crate) trait FdHandler: Send + Sync {
    /// Called by the service thread when one of the descriptors is readable. Must not block.
    fn on_readable(&self);
}

/// A descriptor that the service thread watches for a transport.
pub(crate) struct FdRegistration(u64);

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
            work_list: ServiceWorkList::default(),
            acceptor: ClientAcceptor::default(),
            working: Mutex::default(),
            thread_id: AtomicU32::new(0),
        })
    }

    /// Returns the thread id of the service thread.
    pub(super) fn thread_id(&self) -> u32 {
        self.thread_id.load(Ordering::Acquire)
    }

    /// Pauses the service thread until the guard is dropped.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        self.working.lock()
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
    fn next_token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    fn watch_fd(&self, fd: BorrowedFd<'_>, watched: WatchedFd) -> Result<()> {
        let token = self.next_token();
        self.watched.lock().insert(token, watched);
        self.epoll_add(fd, token, epoll::EventFlags::IN)
            .inspect_err(|_| drop(self.watched.lock().remove(&token)))
    }

    /// Watches a descriptor for a transport.
    pub(crate) fn register_fd(
        &self,
        fd: BorrowedFd<'_>,
        handler: Arc<dyn FdHandler>,
    ) -> Result<FdRegistration> {
        let token = self.next_token();
        self.watched.lock().insert(token, WatchedFd::Handler(handler));
        self.epoll_add(fd, token, epoll::EventFlags::IN)
            .inspect_err(|_| drop(self.watched.lock().remove(&token)))?;
        Ok(FdRegistration(token))
    }

    /// Suspends or resumes watching a descriptor of a transport.
    pub(crate) fn set_fd_watched(&self, fd: BorrowedFd<'_>, registration: &FdRegistration, is_watched: bool) {
        let events = if is_watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(registration.0), events);
    }

    fn epoll_add(&self, fd: BorrowedFd<'_>, token: u64, events: epoll::EventFlags) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), events)
            .map_err(|e| Error::os("epoll_ctl", "watch a descriptor", e))
    }

    /// Continues handshakes when a process has replied at `socket` or closed it.
    pub(super) fn watch_handshake(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.epoll_add(socket, HELLO_TOKEN, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
    }

    /// Stops watching `fd`.
    fn unwatch_fd(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Accepts peers that connect to a block.
    pub(super) fn listen(&self, block: &Arc<Block>) -> Result<()> {
        self.watch_fd(block.listener.as_fd(), WatchedFd::Listener(block.clone()))
    }

    /// Watches a peer's pidfd and its replies.
    pub(super) fn watch(&self, peer: &Arc<Peer>) -> Result<()> {
        self.watch_fd(peer.liveness.pidfd.as_fd(), WatchedFd::Peer(peer.clone()))?;
        // The socket was added for the handshake.
        self.unwatch_fd(peer.socket.as_fd());
        let replies = WatchedFd::Replies(Arc::downgrade(peer));
        self.watch_fd(peer.socket.as_fd(), replies).inspect_err(|_| self.unwatch(peer))
    }

    /// Stops watching a peer.
    fn unwatch(&self, peer: &Arc<Peer>) {
        self.unwatch_fd(peer.liveness.pidfd.as_fd());
        self.unwatch_fd(peer.socket.as_fd());
        self.watched.lock().retain(|_, w| match w {
            WatchedFd::Peer(watched) => !Arc::ptr_eq(watched, peer),
            WatchedFd::Replies(weak) => weak.as_ptr() != Arc::as_ptr(peer),
            _ => true,
        });
    }

    /// Lists `work` for continuation at intervals, starting soon, until it no longer waits. Costs almost nothing if it
    /// is listed already, which `is_listed` indicates. Returns whether it was not. Must be called after the wait began.
    pub(crate) fn schedule(
        &self,
        is_listed: &AtomicBool,
        work: impl FnOnce() -> Weak<dyn ServiceWork>,
    ) -> bool {
        self.work_list.schedule(is_listed, work, &self.waker)
    }

    /// Like [`Service::schedule`], but due immediately, even if it is listed already.
    pub(crate) fn schedule_now(&self, work: Weak<dyn ServiceWork>) {
        self.work_list.schedule_now(work, &self.waker);
    }

    /// Watches the liveness of a process that sends datagrams to this one, unless it is watched already.
    pub(crate) fn watch_sender(&self, instance: u64, liveness: &Arc<ProcessLiveness>) {
        let is_it = |watched: &WatchedFd| match watched {
            WatchedFd::Peer(peer) => peer.instance == instance,
            WatchedFd::Sender(known, _) => *known == instance,
            _ => false,
        };
        if self.watched.lock().values().any(is_it) {
            return;
        }
        if let Err(error) =
            self.watch_fd(liveness.pidfd.as_fd(), WatchedFd::Sender(instance, liveness.clone()))
        {
            // Its rings are then revoked when other senders need the space.
            tracing::warn!("softnic service: {}", with_sources(&error));
        }
    }

    /// Called when a peer's pidfd indicates its exit.
    fn on_peer_exit(&self, backend: &dyn TransportBackend, peer: &Arc<Peer>) {
        self.unwatch(peer);
        backend.process().forget(peer);
        Self::report_exit(backend, peer.instance, &peer.liveness);
    }

    /// Like [`Service::on_peer_exit`], for a sender.
    fn on_sender_exit(&self, backend: &dyn TransportBackend, instance: u64, liveness: &ProcessLiveness) {
        self.unwatch_fd(liveness.pidfd.as_fd());
        Self::report_exit(backend, instance, liveness);
    }

    fn report_exit(backend: &dyn TransportBackend, instance: u64, liveness: &ProcessLiveness) {
        // Set first: threads that are notified below must read it.
        liveness.mark_exited();
        backend.on_process_exit(instance);
    }

    /// Accepts the connections that wait at a block's socket.
    fn accept(&self, block: &Block) {
        while let Some((socket, trust_level)) = self.acceptor.accept(block) {
            let client = Arc::new(Client::new(socket, self.next_token(), trust_level));
            if let Err(why) = self.require_capacity_for(&client) {
                tracing::warn!("softnic service: refused a connection: {why}");
                continue;
            }
            if let Err(error) = self.watch_fd(client.socket(), WatchedFd::Client(client.clone())) {
                tracing::warn!("softnic service: {}", with_sources(&error));
            }
        }
    }

    fn require_capacity_for(&self, client: &Client) -> Result<(), String> {
        let watched = self.watched.lock();
        client.require_capacity(watched.values().filter_map(|watched| match watched {
            WatchedFd::Client(other) => Some(&**other),
            _ => None,
        }))
    }

    fn run_iteration(&self, backend: &dyn TransportBackend) {
        let due = {
            let _working = self.working.lock();
            self.work_list.resume_due()
        };
        let timeout =
            due.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Not on the heap: while memory of the program moves, the heap must not be written, and the lock that excludes
        // this is taken below.
        let mut buffer = [const { MaybeUninit::uninit() }; 32];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(e) => {
                tracing::error!("softnic service: epoll_wait: {e}");
                std::thread::sleep(RESUME_DELAY_MAX);
                &[]
            }
        };
        let _working = self.working.lock();
        for event in events {
            self.handle_event(backend, event.data.u64());
        }
    }

    /// Handles a descriptor that is ready.
    fn handle_event(&self, backend: &dyn TransportBackend, token: u64) {
        if token == WAKER_TOKEN {
            self.waker.clear();
            return backend.service_sleeping_cqs();
        }
        if token == HELLO_TOKEN {
            return self.work_list.expedite_all();
        }
        let Some(watched) = self.watched.lock().get(&token).cloned() else { return };
        let keep = match watched {
            WatchedFd::Listener(block) => {
                self.accept(&block);
                true
            }
            WatchedFd::Client(client) => {
                let next = client.serve(backend);
                self.set_client_interest(&client, token, next);
                next != NextInterest::End
            }
            WatchedFd::Replies(peer) => self.collect(&peer),
            WatchedFd::Handler(handler) => {
                handler.on_readable();
                true
            }
            WatchedFd::Peer(peer) => {
                self.on_peer_exit(backend, &peer);
                false
            }
            WatchedFd::Sender(instance, liveness) => {
                self.on_sender_exit(backend, instance, &liveness);
                false
            }
        };
        if !keep {
            self.watched.lock().remove(&token);
        }
    }

    /// Sets whether the client's socket is watched for requests or for space for replies.
    fn set_client_interest(&self, client: &Client, token: u64, next: NextInterest) {
        let events = match next {
            NextInterest::Requests => epoll::EventFlags::IN,
            NextInterest::ReplySpace => epoll::EventFlags::OUT,
            NextInterest::End => return,
        };
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.epoll, client.socket(), data, events) {
            tracing::warn!("softnic service: epoll_ctl: {error}");
        }
    }

    /// Receives a peer's replies and continues the requests that wait for them. Returns whether to keep watching.
    fn collect(&self, peer: &Weak<Peer>) -> bool {
        let Some(peer) = peer.upgrade() else { return false };
        let Ok(has_replies) = peer.collect() else {
            // The peer has closed the socket. Only its pidfd indicates an exit, because a socket can also fail alone.
            self.unwatch_fd(peer.socket.as_fd());
            return false;
        };
        if has_replies {
            self.work_list.expedite_all();
        }
        true
    }
}

/// Starts the service thread of the process of `backend`.
pub(crate) fn start(backend: Arc<dyn TransportBackend>) -> Result<()> {
    let (started_tx, started_rx) = mpsc::channel();
    std::thread::Builder::new()
        .name("farcall-softnic".into())
        .stack_size(256 << 10)
        .spawn(move || {
            block_signals();
            // Handshakes wait for this thread, and it sleeps most of the time.
            request_short_slice();
            IS_SERVICE.set(true);
            let service = &backend.process().service;
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            service.thread_id.store(id, Ordering::Release);
            let _ = started_tx.send(());
            loop {
                service.run_iteration(&*backend);
            }
        })
        .map_err(|e| Error::os("start the service thread", "create a thread (check RLIMIT_NPROC)", e))?;
    // Waits until the thread id is stored, which distinguishes this thread from those of the program.
    let _ = started_rx.recv();
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

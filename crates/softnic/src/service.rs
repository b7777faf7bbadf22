//! The one service thread: it blocks, serves grants to peers, sees peers die, and continues requests that wait, as any
//! visitor of a send side may, for owners who sleep or do something else.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use farcall_verbs::{Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};

use crate::channel::Waker;
use crate::fence;
use crate::fork::UnforkedFd;
use crate::peer::Peer;
use crate::process::{Process, Turn};
use crate::rendezvous::{Block, Client, answer, judge};

/// Clients that may be connected to us at once.
const MAX_CLIENTS: u64 = 4096;

/// And of one process: it needs one for each of our blocks of queue pair numbers that it talks to.
fn most_of_a_process(most_clients: usize) -> usize {
    (most_clients / 4).min(256)
}

/// A client takes two descriptors: the other half of them is the program's.
fn most_clients(open_files: Option<u64>) -> usize {
    open_files.map_or(MAX_CLIENTS, |limit| (limit / 4).min(MAX_CLIENTS)) as usize
}

/// How often waiting requests are looked at again: from, to, doubling.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(20);

pub(crate) struct Service {
    epoll: Arc<UnforkedFd>,
    waker: Waker,
    next_token: AtomicU64,
    watched: Mutex<HashMap<u64, Watched>>,
    waiting: Mutex<WaitingList>,
    /// What the thread does between two sleeps.
    at_work: Turn,
    thread_id: AtomicU32,
}

/// What a descriptor of the epoll set is.
#[derive(Clone)]
enum Watched {
    Listener(Arc<Block>),
    Client(Arc<Client>),
    /// Kept until its end is told, also if another process has its block by then.
    Peer(Arc<Peer>),
    /// What a peer answers.
    Answers(Weak<Peer>),
    /// A process that sends us datagrams: its instance, and its life.
    Sender(u64, Arc<OwnedFd>),
}

/// With it the service thread is told to take in a peer's next answers.
pub(crate) struct Bell {
    epoll: Arc<UnforkedFd>,
    token: u64,
}

impl Bell {
    /// Once something has come over `socket`, or has already, the service thread takes it in.
    pub(crate) fn set(&self, socket: &UnforkedFd) {
        let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // It fails if the peer is dead: then it is watched no more.
        let _ = epoll::modify(&*self.epoll, socket, epoll::EventData::new_u64(self.token), events);
    }
}

/// Something that the service thread continues from time to time, for owners who sleep or do something else.
pub(crate) trait Waits: Send + Sync {
    /// Whether it is in the service thread's list; changed under the list's lock.
    fn is_listed(&self) -> &AtomicBool;

    /// Whether it still must be continued.
    fn keeps_waiting(&self) -> bool;

    /// A number that changes whenever its owner continues it: it is left alone as long as that happens. `None`: only the
    /// service thread can do what is to be done.
    fn attendance(&self) -> Option<u32> {
        None
    }

    /// Continues it; called by the service thread, which must not wait.
    fn go_on(&self);
}

#[derive(Default)]
struct WaitingList {
    entries: Vec<Waiting>,
    /// When the service thread will look at it, unless it is woken; `None`: not at all.
    planned: Option<Instant>,
}

struct Waiting {
    what: Weak<dyn Waits>,
    at: Instant,
    every: Duration,
    /// Its attendance at the last look; `None`: it is continued at the next in any case.
    seen: Option<u32>,
}

impl WaitingList {
    /// Whether the service thread must be woken to look at `at`.
    fn plan(&mut self, at: Instant) -> bool {
        let is_late = self.planned.is_none_or(|planned| planned > at);
        if is_late {
            self.planned = Some(at);
        }
        is_late
    }
}

const WAKER_TOKEN: u64 = 0;

impl Service {
    pub(crate) fn new() -> Result<Self> {
        let what = "create the service thread's descriptors (check RLIMIT_NOFILE)";
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::os("epoll_create", what, e))?;
        let epoll = Arc::new(UnforkedFd::new(epoll));
        let waker = Waker::create()?;
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKER_TOKEN), epoll::EventFlags::IN)
            .map_err(|e| Error::os("epoll_ctl", what, e))?;
        Ok(Self {
            epoll,
            waker,
            next_token: AtomicU64::new(WAKER_TOKEN + 1),
            watched: Mutex::default(),
            waiting: Mutex::default(),
            at_work: Turn::default(),
            thread_id: AtomicU32::new(0),
        })
    }

    pub(crate) fn start(&self, process: &Arc<Process>) -> Result<()> {
        let process = process.clone();
        let (tell, told) = mpsc::channel();
        std::thread::Builder::new()
            .name("farcall-softnic".into())
            .stack_size(256 << 10)
            .spawn(move || {
                block_signals();
                IS_SERVICE.set(true);
                let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                process.service.thread_id.store(id, Ordering::Release);
                let _ = tell.send(());
                loop {
                    process.service.turn(&process);
                }
            })
            .map_err(|e| Error::os("start the service thread", "create a thread (check RLIMIT_NPROC)", e))?;
        // So that it is known from the other threads of the program.
        let _ = told.recv();
        Ok(())
    }

    /// The number of the service thread.
    pub(crate) fn thread_id(&self) -> u32 {
        self.thread_id.load(Ordering::Acquire)
    }

    /// Keeps the service thread from everything until the guard is dropped.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.at_work.take()
    }

    /// Makes it look after those who sleep.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Where peers wake it.
    pub(crate) fn waker_fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    fn add(&self, fd: BorrowedFd<'_>, watched: Watched) -> Result<()> {
        self.add_for(fd, watched, epoll::EventFlags::IN).map(drop)
    }

    /// Watches `fd` for `events`; returns its token.
    fn add_for(&self, fd: BorrowedFd<'_>, watched: Watched, events: epoll::EventFlags) -> Result<u64> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(token, watched);
        epoll::add(&*self.epoll, fd, epoll::EventData::new_u64(token), events).map_err(|e| {
            self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
            Error::os("epoll_ctl", "watch a descriptor", e)
        })?;
        Ok(token)
    }

    /// Serves peers that ask for queue pairs of a block.
    pub(crate) fn listen(&self, block: &Arc<Block>) -> Result<()> {
        self.add(block.listener().as_fd(), Watched::Listener(block.clone()))
    }

    /// Watches a peer's life, and what it answers to those who do not wait for it.
    pub(crate) fn watch(&self, peer: &Arc<Peer>) -> Result<()> {
        self.add(peer.pidfd().as_fd(), Watched::Peer(peer.clone()))?;
        // Whoever waits in place reads its answer itself: nobody else is woken for it.
        let answers = Watched::Answers(Arc::downgrade(peer));
        let token = self
            .add_for(peer.socket().as_fd(), answers, epoll::EventFlags::ONESHOT)
            .inspect_err(|_| self.unwatch(peer))?;
        peer.set_bell(Bell { epoll: self.epoll.clone(), token });
        Ok(())
    }

    /// Stops watching a dead peer.
    fn unwatch(&self, peer: &Arc<Peer>) {
        let _ = epoll::delete(&*self.epoll, peer.pidfd());
        let _ = epoll::delete(&*self.epoll, peer.socket());
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, w| match w {
            Watched::Peer(watched) => !Arc::ptr_eq(watched, peer),
            Watched::Answers(weak) => weak.as_ptr() != Arc::as_ptr(peer),
            _ => true,
        });
    }

    /// Continues `what` from time to time, beginning soon, until it no longer waits. Costs next to nothing if that is so
    /// already; returns whether it was not. Call after it began to wait.
    pub(crate) fn retry<W: Waits + 'static>(&self, what: &W, weak: &Weak<W>) -> bool {
        // Whoever takes it off the list looks once more whether it waits.
        fence::light();
        if what.is_listed().load(Ordering::Relaxed) {
            return false;
        }
        let mut waiting = self.lock_waiting();
        if what.is_listed().swap(true, Ordering::Relaxed) {
            return false;
        }
        let at = Instant::now() + RETRY_FIRST;
        let seen = what.attendance();
        waiting.entries.push(Waiting { what: weak.clone(), at, every: RETRY_FIRST, seen });
        if waiting.plan(at) {
            self.waker.wake();
        }
        true
    }

    /// As [`Service::retry`], but beginning now, also if it waits already.
    pub(crate) fn retry_now<W: Waits + 'static>(&self, what: &W, weak: &Weak<W>) {
        let mut waiting = self.lock_waiting();
        let at = Instant::now();
        let begin = Waiting { what: weak.clone(), at, every: RETRY_FIRST, seen: None };
        if !what.is_listed().swap(true, Ordering::Relaxed) {
            waiting.entries.push(begin);
        } else if let Some(listed) =
            waiting.entries.iter_mut().find(|w| w.what.as_ptr().addr() == weak.as_ptr().addr())
        {
            *listed = begin;
        }
        waiting.planned = Some(at);
        self.waker.wake();
    }

    fn lock_waiting(&self) -> MutexGuard<'_, WaitingList> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the life of a process that sends us datagrams.
    pub(crate) fn watch_sender(&self, instance: u64, life: &Arc<OwnedFd>) {
        let known = |w: &Watched| matches!(w, Watched::Sender(known, _) if *known == instance);
        if self.watched.lock().unwrap_or_else(PoisonError::into_inner).values().any(known) {
            return;
        }
        if let Err(error) = self.add(life.as_fd(), Watched::Sender(instance, life.clone())) {
            // What it leaves is then given back when others need the place.
            tracing::warn!("softnic service: {error}");
        }
    }

    fn turn(&self, process: &Process) {
        let due = {
            let _at_work = self.at_work.take();
            self.retry_due()
        };
        let timeout =
            due.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Not on the heap: that may be still, and this is written to before we know.
        let mut room = [const { MaybeUninit::uninit() }; 32];
        let events: &[epoll::Event] = match epoll::wait(&*self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(e) => {
                tracing::error!("softnic service: epoll_wait: {e}");
                std::thread::sleep(RETRY_LAST);
                &[]
            }
        };
        let _at_work = self.at_work.take();
        for event in events {
            let token = event.data.u64();
            if token == WAKER_TOKEN {
                self.waker.clear();
                process.look_after_sleepers();
                continue;
            }
            let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).get(&token).cloned();
            let keep = match watched {
                Some(Watched::Listener(block)) => self.accept(&block),
                Some(Watched::Client(client)) => answer(process, &client),
                Some(Watched::Peer(peer)) => {
                    self.unwatch(&peer);
                    peer.bury();
                    process.forget(&peer);
                    process.past_lives.prune();
                    // What it was given of shared receives and has not used goes to others.
                    process.queue_pairs().iter().for_each(|qp| qp.continue_receives());
                    false
                }
                Some(Watched::Answers(peer)) => self.collect(&peer),
                Some(Watched::Sender(instance, life)) => {
                    let _ = epoll::delete(&*self.epoll, &*life);
                    process.sender_ended(instance);
                    false
                }
                None => true,
            };
            if !keep {
                self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
            }
        }
    }

    /// Takes a peer's answers in and continues those who wait for them; returns whether to keep watching.
    fn collect(&self, peer: &Weak<Peer>) -> bool {
        let Some(peer) = peer.upgrade() else { return false };
        let Ok(granted) = peer.collect() else {
            // It has hung up. Its end is its pidfd's to tell: a socket can also be broken by itself.
            let _ = epoll::delete(&*self.epoll, peer.socket());
            return false;
        };
        if granted {
            // A refusal is not worth a hurry: a peer that is not ready would be asked without a pause.
            let now = Instant::now();
            self.lock_waiting()
                .entries
                .iter_mut()
                .for_each(|waiting| (waiting.at, waiting.seen) = (now, None));
        }
        true
    }

    fn accept(&self, block: &Block) -> bool {
        loop {
            let socket = match accept_with(block.listener(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                    // The peer stays in the backlog, which stays readable: do not spin on it.
                    tracing::warn!(
                        "softnic service: no descriptor for a peer (raise RLIMIT_NOFILE): {error}"
                    );
                    std::thread::sleep(RETRY_LAST);
                    return true;
                }
                Err(_) => return true,
            };
            let kinship = match judge(socket.as_fd(), "a local process") {
                Ok(kinship) => kinship,
                Err(error) => {
                    tracing::warn!("softnic service: refused a connection: {error}");
                    continue;
                }
            };
            let id = self.next_token.fetch_add(1, Ordering::Relaxed);
            let client = Arc::new(Client::new(socket, id, kinship));
            if let Err(why) = self.has_room_for(&client) {
                tracing::warn!("softnic service: refused a connection: {why}");
                continue;
            }
            if let Err(error) = self.add(client.socket(), Watched::Client(client.clone())) {
                tracing::warn!("softnic service: {error}");
            }
        }
    }

    /// Checks that neither all clients nor one process hold too many of our descriptors.
    fn has_room_for(&self, client: &Client) -> Result<(), String> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut all, mut its) = (0, 0);
        let number = client.process_number();
        for other in watched.values() {
            if let Watched::Client(other) = other {
                all += 1;
                its += usize::from(number.is_some() && other.process_number() == number);
            }
        }
        let most = most_clients(getrlimit(Resource::Nofile).current);
        if all >= most {
            return Err(format!(
                "{all} are connected, at most {most} may be (a quarter of RLIMIT_NOFILE: raise it)"
            ));
        }
        if its >= most_of_a_process(most) {
            return Err(format!("its process has {its} already"));
        }
        Ok(())
    }

    /// Continues requests that are due, for owners who do something else; returns how long until the next.
    fn retry_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let (mut due, mut unlisted) = (Vec::new(), Vec::new());
        let mut waiting = self.lock_waiting();
        waiting.entries.retain_mut(|waiting| {
            // What is due soon is due now, and from then on together with the rest.
            if waiting.at > now + RETRY_FIRST / 2 {
                return true;
            }
            let Some(what) = waiting.what.upgrade() else { return false };
            let attendance = what.attendance();
            let is_attended = waiting.seen.is_some() && attendance.is_some() && attendance != waiting.seen;
            waiting.seen = attendance;
            if !what.keeps_waiting() {
                // Who waits again and again, and sees to it himself, stays.
                if !is_attended {
                    what.is_listed().store(false, Ordering::Relaxed);
                    unlisted.push(what);
                }
                waiting.every = (waiting.every * 2).min(RETRY_LAST);
                waiting.at = now + waiting.every;
                return is_attended;
            }
            waiting.every = (waiting.every * 2).min(RETRY_LAST);
            waiting.at = now + waiting.every;
            if !is_attended {
                due.push(what);
            }
            true
        });
        relist(&mut waiting.entries, unlisted, now);
        let next = waiting.entries.iter().map(|waiting| waiting.at).min();
        waiting.planned = next;
        // Not under the lock: what is continued may have to wait again.
        drop(waiting);
        for what in due {
            what.go_on();
        }
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// What was taken off the list and began to wait meanwhile goes back: its owner may have found it listed.
fn relist(entries: &mut Vec<Waiting>, unlisted: Vec<Arc<dyn Waits>>, now: Instant) {
    if unlisted.is_empty() {
        return;
    }
    fence::heavy();
    for what in unlisted.iter().filter(|what| what.keeps_waiting()) {
        what.is_listed().store(true, Ordering::Relaxed);
        entries.push(Waiting {
            what: Arc::downgrade(what),
            at: now + RETRY_FIRST,
            every: RETRY_FIRST,
            seen: what.attendance(),
        });
    }
}

thread_local! {
    static IS_SERVICE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is the service thread, which answers others and so must never wait for an answer.
pub(crate) fn is_service_thread() -> bool {
    IS_SERVICE.get()
}

/// Signals are for the program's own threads.
fn block_signals() {
    // SAFETY: fills and installs a signal set of this thread; no memory is kept.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

//! Many sockets and one thread that waits for all of them (RR-Compound, algorithms 1 and 2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_drive::IdlePolicy;
use farcall_link::WaitStrategy;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::StreamSocket;

/// Non-blocking sockets, and the information which of them may have work.
///
/// With `WaitStrategy::Busy`, one thread polls all sockets in turn (BPTS). With `WaitStrategy::EventBatch`, it sleeps
/// until an event occurs. With `WaitStrategy::Bpev`, it polls for a while and then sleeps; if the sockets have pollers,
/// these wake it.
pub struct StreamSet {
    waiting: WaitStrategy,
    idle_policy: IdlePolicy,
    members: Vec<Option<Member>>,
    /// Members that had work since the last sleep.
    unarmed: Vec<usize>,
    poller: OwnedFd,
    turns: u32,
}

struct Member {
    socket: StreamSocket,
    is_armed: bool,
}

/// Number of members that count as one idle poll.
const MEMBERS_PER_POLL: usize = 64;
/// Iterations of a set that never sleeps between two polls for events other than bytes: ends and failures.
const TURNS_PER_PROGRESS: u32 = 256;
const EVENTS_AT_ONCE: usize = 128;

impl StreamSet {
    /// Creates an empty set.
    ///
    /// # Errors
    /// Returns an error if no descriptor can be created.
    pub fn new(waiting: WaitStrategy) -> io::Result<Self> {
        Ok(Self {
            waiting,
            idle_policy: IdlePolicy::new(waiting),
            members: Vec::new(),
            unarmed: Vec::new(),
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            turns: 0,
        })
    }

    /// Adds a socket and returns its number. Its calls become non-blocking, and its descriptor is reserved for the
    /// set.
    ///
    /// # Errors
    /// Returns an error if the socket is not [`super::StreamOptions::pollable`]; in a set with `WaitStrategy::Busy`,
    /// also a socket with `WaitStrategy::Busy` is accepted.
    pub fn insert(&mut self, mut socket: StreamSocket) -> io::Result<usize> {
        let at = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
        socket.set_nonblocking(true)?;
        if self.waiting != WaitStrategy::Busy {
            let data = epoll::EventData::new_u64(at as u64);
            let fd = socket.pollable_fd()?;
            // SAFETY: `borrow_raw` requires an open descriptor for the lifetime of the result. `fd` was returned by
            // `StreamSocket::pollable_fd`; it belongs to `socket`, which is alive here, and the borrow ends with the
            // call.
            epoll::add(&self.poller, unsafe { BorrowedFd::borrow_raw(fd) }, data, epoll::EventFlags::IN)?;
        }
        socket.set_armed_by_set();
        if at == self.members.len() {
            self.members.push(None);
        }
        self.members[at] = Some(Member { socket, is_armed: false });
        self.unarmed.push(at);
        Ok(at)
    }

    /// Returns the socket with number `at`.
    pub fn socket(&mut self, at: usize) -> Option<&mut StreamSocket> {
        Some(&mut self.members.get_mut(at)?.as_mut()?.socket)
    }

    /// Removes and closes the socket with number `at`.
    pub fn remove(&mut self, at: usize) {
        if let Some(place) = self.members.get_mut(at) {
            *place = None;
            self.unarmed.retain(|unarmed| *unarmed != at);
        }
    }

    /// Returns the number of sockets.
    pub fn len(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until some sockets may have work, and puts their numbers into `ready`. `ready` is empty after `timeout`
    /// and after a spurious wake-up. A socket that has not returned `WouldBlock` since it was last ready, or since it
    /// was inserted, is ready again before the set sleeps.
    ///
    /// # Errors
    /// Returns the error of `epoll_wait`.
    pub fn wait(&mut self, ready: &mut Vec<usize>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.poll_members(ready) {
                self.idle_policy.worked();
                return Ok(());
            }
            if self.idle_policy.was_idle((self.members.len() / MEMBERS_PER_POLL) as u32 + 1) {
                return self.sleep(ready, deadline);
            }
            self.turns = self.turns.wrapping_add(1);
            if self.turns.is_multiple_of(TURNS_PER_PROGRESS) {
                self.progress(ready);
                if !ready.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(());
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Polls all members for bytes, at the cost of one load each.
    #[inline]
    fn poll_members(&mut self, ready: &mut Vec<usize>) -> bool {
        for (at, member) in self.members.iter_mut().enumerate() {
            if let Some(member) = member
                && member.socket.has_work()
            {
                ready.push(at);
                member.unarm(at, &mut self.unarmed);
            }
        }
        !ready.is_empty()
    }

    /// Runs a driver iteration of each member that is not armed.
    fn progress(&mut self, ready: &mut Vec<usize>) {
        for at in self.unarmed.iter().copied() {
            if let Some(member) = &mut self.members[at]
                && member.socket.make_progress()
            {
                ready.push(at);
            }
        }
    }

    fn sleep(&mut self, ready: &mut Vec<usize>, deadline: Option<Instant>) -> io::Result<()> {
        let (members, unarmed) = (&mut self.members, &mut self.unarmed);
        unarmed.retain(|at| {
            let Some(member) = &mut members[*at] else { return false };
            member.is_armed = member.socket.is_waiting() && member.socket.arm();
            if !member.is_armed {
                ready.push(*at);
            }
            !member.is_armed
        });
        if !ready.is_empty() {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_AT_ONCE];
        let events = match epoll::wait(&self.poller, &mut room[..], left.as_ref()) {
            Ok((events, _)) => &*events,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        self.idle_policy.woke();
        for event in events {
            let at = event.data.u64() as usize;
            if let Some(member) = &mut self.members[at] {
                if member.socket.has_work() {
                    self.idle_policy.worked();
                }
                ready.push(at);
                member.unarm(at, &mut self.unarmed);
            }
        }
        Ok(())
    }
}

impl Member {
    fn unarm(&mut self, at: usize, unarmed: &mut Vec<usize>) {
        if std::mem::take(&mut self.is_armed) {
            unarmed.push(at);
        }
    }
}

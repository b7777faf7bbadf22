//! Many sockets and one thread that waits for all of them (RR-Compound, algorithms 1 and 2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_drive::IdleTurns;
use farcall_link::Waiting;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::StreamSocket;

/// Sockets that do not wait, and who of them may have something to do.
///
/// By `Waiting::Busy` one thread polls all of them in turn (BPTS). By `Waiting::EventBatch` it sleeps until one tells of
/// an event. By `Waiting::Bpev` it polls for a while, then sleeps; where the sockets have pollers, those wake it.
pub struct StreamSet {
    waiting: Waiting,
    idle_turns: IdleTurns,
    members: Vec<Option<Member>>,
    /// Those that had something since the last sleep.
    unarmed: Vec<usize>,
    poller: OwnedFd,
    turns: u32,
}

struct Member {
    socket: StreamSocket,
    is_armed: bool,
}

/// So many members are one idle look.
const MEMBERS_A_LOOK: usize = 64;
/// Turns of a set that never sleeps between two looks at what is not bytes: ends, failures.
const TURNS_PER_PROGRESS: u32 = 256;
const EVENTS_AT_ONCE: usize = 128;

impl StreamSet {
    /// An empty set.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    pub fn new(waiting: Waiting) -> io::Result<Self> {
        Ok(Self {
            waiting,
            idle_turns: IdleTurns::new(waiting),
            members: Vec::new(),
            unarmed: Vec::new(),
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            turns: 0,
        })
    }

    /// Takes a socket in; its calls do not wait from now on, and its own descriptor is for the set alone. Returns its
    /// number.
    ///
    /// # Errors
    /// If the socket is not [`super::StreamOptions::pollable`], or not `Waiting::Busy` in a set that is.
    pub fn insert(&mut self, mut socket: StreamSocket) -> io::Result<usize> {
        let at = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
        socket.set_nonblocking(true)?;
        if self.waiting != Waiting::Busy {
            let data = epoll::EventData::new_u64(at as u64);
            let fd = socket.pollable_fd()?;
            // SAFETY: it belongs to the socket, which is open.
            epoll::add(&self.poller, unsafe { BorrowedFd::borrow_raw(fd) }, data, epoll::EventFlags::IN)?;
        }
        socket.is_taken_by_set();
        if at == self.members.len() {
            self.members.push(None);
        }
        self.members[at] = Some(Member { socket, is_armed: false });
        self.unarmed.push(at);
        Ok(at)
    }

    /// The socket with this number.
    pub fn socket(&mut self, at: usize) -> Option<&mut StreamSocket> {
        Some(&mut self.members.get_mut(at)?.as_mut()?.socket)
    }

    /// Closes the socket with this number.
    pub fn remove(&mut self, at: usize) {
        if let Some(place) = self.members.get_mut(at) {
            *place = None;
            self.unarmed.retain(|unarmed| *unarmed != at);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until some may have something to do, and puts their numbers into `ready`; none if that takes longer than
    /// `timeout`, or for no reason. One that has not said `WouldBlock` since, as a new one, is ready again before the
    /// set sleeps.
    ///
    /// # Errors
    /// If the system cannot wait.
    pub fn wait(&mut self, ready: &mut Vec<usize>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.look(ready) {
                self.idle_turns.worked();
                return Ok(());
            }
            if self.idle_turns.was_idle((self.members.len() / MEMBERS_A_LOOK) as u32 + 1) {
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

    /// One load for each.
    #[inline]
    fn look(&mut self, ready: &mut Vec<usize>) -> bool {
        for (at, member) in self.members.iter_mut().enumerate() {
            if let Some(member) = member
                && member.socket.has_news()
            {
                ready.push(at);
                member.unarm(at, &mut self.unarmed);
            }
        }
        !ready.is_empty()
    }

    /// Looks at everything of those that no event tells of.
    fn progress(&mut self, ready: &mut Vec<usize>) {
        for at in self.unarmed.iter().copied() {
            if let Some(member) = &mut self.members[at]
                && member.socket.finds_something()
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
        self.idle_turns.woke();
        for event in events {
            let at = event.data.u64() as usize;
            if let Some(member) = &mut self.members[at] {
                if member.socket.has_news() {
                    self.idle_turns.worked();
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

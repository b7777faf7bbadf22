//! The ends of this process, and what their programs have not heard of yet. One lock around all of it: nothing here is frequent.

mod conversation;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farcall_cm::{Connection, Event, Message, Request, ServiceRequest};
use rustix::event::epoll;

use crate::errno::Errno;
use crate::id::IdObject;
use crate::listener::{Listening, Slot, Stranger};
use crate::shared::Published;
pub use conversation::{Heard, hear, say};

/// Something that has a number in this process: an end, a stranger, a queue of events.
pub type Token = u64;

/// An address of a program's object. Followed only by the program's own calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id(pub *mut IdObject);

// SAFETY: an address; see above.
unsafe impl Send for Id {}

/// What a program will hear of.
pub enum Notice {
    AddressResolved,
    AddressError(Errno),
    RouteResolved,
    /// A peer asks; the new end that will answer it.
    Asked {
        end: Token,
        _slot: Slot,
    },
    Connection(Event),
}

/// What a peer asked for.
pub enum Asked {
    Connection(Request),
    Service(ServiceRequest),
}

/// One end: what is behind an `rdma_cm_id`.
pub struct End {
    /// None until the program heard of it: an end that a peer's request made.
    pub id: Option<Id>,
    /// Where its events go.
    pub queue: Token,
    pub socket: Option<OwnedFd>,
    /// A listener's socket for other networks.
    pub published: Option<Published>,
    pub listening: Option<Listening>,
    pub connection: Option<Connection>,
    pub asked: Option<Asked>,
    /// A request that no listener has taken yet, and since when it is there.
    unsent: Option<(Message, Instant)>,
    deadline: Option<Instant>,
    /// When the program hears that the peer ended the connection.
    farewell: Option<Instant>,
}

impl End {
    pub fn new(id: Option<Id>, queue: Token) -> Self {
        Self {
            id,
            queue,
            socket: None,
            published: None,
            listening: None,
            connection: None,
            asked: None,
            unsent: None,
            deadline: None,
            farewell: None,
        }
    }
}

/// Events that wait for one channel. Its eventfd counts them.
struct Queue {
    count: OwnedFd,
    waiting: VecDeque<(Token, Notice)>,
}

/// An event as it is handed out.
pub struct Taken {
    pub id: Id,
    pub notice: Notice,
}

pub struct World {
    pub(crate) ends: HashMap<Token, End>,
    pub(crate) strangers: HashMap<Token, Stranger>,
    queues: HashMap<Token, Queue>,
    timers: BTreeSet<(Instant, Token)>,
    last_token: Token,
    poll: OwnedFd,
    wake: Arc<OwnedFd>,
}

/// The number of the descriptor that wakes the thread.
pub const WAKE: Token = 0;

impl World {
    pub fn new(poll: OwnedFd, wake: Arc<OwnedFd>) -> Self {
        Self {
            ends: HashMap::new(),
            strangers: HashMap::new(),
            queues: HashMap::new(),
            timers: BTreeSet::new(),
            last_token: WAKE,
            poll,
            wake,
        }
    }

    pub(crate) fn token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    /// A new queue of events, counted by an eventfd.
    pub fn add_queue(&mut self, count: OwnedFd) -> Token {
        let token = self.token();
        self.queues.insert(token, Queue { count, waiting: VecDeque::new() });
        token
    }

    pub fn remove_queue(&mut self, token: Token) {
        self.queues.remove(&token);
    }

    pub fn add_end(&mut self, end: End) -> Token {
        let token = self.token();
        self.ends.insert(token, end);
        token
    }

    /// # Errors
    /// `ENODEV` if it is not of this process: a forked child's, from before.
    pub fn end(&mut self, token: Token) -> Result<&mut End, Errno> {
        self.ends.get_mut(&token).ok_or(libc::ENODEV)
    }

    /// Forgets an end, what its program has not heard of, and who waits for an answer of it.
    pub fn remove_end(&mut self, token: Token) {
        let Some(end) = self.ends.remove(&token) else { return };
        self.rest(token, end.deadline);
        self.close(end.socket);
        if let Some(published) = &end.published {
            self.end_socket(&published.socket);
        }
        for (_, notice) in self.take_all(end.queue, |of, _| of == token) {
            if let Notice::Asked { end, .. } = notice {
                self.remove_end(end);
            }
        }
        let strangers = self.strangers.iter().filter(|(_, stranger)| stranger.listener == token);
        let strangers: Vec<Token> = strangers.map(|(stranger, _)| *stranger).collect();
        for stranger in strangers {
            self.dismiss(stranger);
        }
    }

    /// Moves an end and its events to another channel.
    pub fn migrate(&mut self, token: Token, queue: Token) -> Result<(), Errno> {
        let before = std::mem::replace(&mut self.end(token)?.queue, queue);
        let mut moved = vec![token];
        let of_ends = self.queues.get(&before).into_iter().flat_map(|queue| &queue.waiting);
        moved.extend(of_ends.filter_map(|(of, notice)| match notice {
            Notice::Asked { end, .. } if *of == token => Some(*end),
            _ => None,
        }));
        for end in &moved[1..] {
            if let Some(end) = self.ends.get_mut(end) {
                end.queue = queue;
            }
        }
        for (of, notice) in self.take_all(before, |of, _| moved.contains(&of)) {
            self.push(queue, of, notice);
        }
        Ok(())
    }

    /// Watches a socket for what arrives.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn watch(&self, socket: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, socket, data, epoll::EventFlags::IN).map_err(|error| error.raw_os_error())
    }

    fn push(&mut self, queue: Token, of: Token, notice: Notice) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.waiting.push_back((of, notice));
            // Its count is far below what would make it block.
            let _ = rustix::io::write(&queue.count, &1_u64.to_ne_bytes());
        }
    }

    /// Tells an end's program.
    pub fn tell(&mut self, token: Token, notice: Notice) {
        if let Some(queue) = self.ends.get(&token).map(|end| end.queue) {
            self.push(queue, token, notice);
        }
    }

    fn take_all(&mut self, queue: Token, is_wanted: impl Fn(Token, &Notice) -> bool) -> Vec<(Token, Notice)> {
        let Some(queue) = self.queues.get_mut(&queue) else { return Vec::new() };
        let waiting = std::mem::take(&mut queue.waiting);
        let mut taken = Vec::new();
        for (of, notice) in waiting {
            if is_wanted(of, &notice) {
                taken.push((of, notice));
            } else {
                queue.waiting.push_back((of, notice));
            }
        }
        for _ in &taken {
            count_down(&queue.count);
        }
        taken
    }

    /// Whether an end's program has something to hear.
    pub fn has_notice(&self, token: Token) -> bool {
        let queue = self.ends.get(&token).and_then(|end| self.queues.get(&end.queue));
        queue.is_some_and(|queue| queue.waiting.iter().any(|(of, _)| *of == token))
    }

    /// Tells an end's program that the peer ended the connection: when it is time, or when the program ends it, too.
    pub fn bid_farewell(&mut self, token: Token) {
        if self.ends.get_mut(&token).is_some_and(|end| end.farewell.take().is_some()) {
            self.tell(token, Notice::Connection(Event::Disconnected));
        }
    }

    /// The next event of a channel. Its end's program acknowledges it.
    pub fn take(&mut self, queue: Token) -> Option<Taken> {
        loop {
            let queue = self.queues.get_mut(&queue)?;
            let (token, notice) = queue.waiting.pop_front()?;
            count_down(&queue.count);
            if let Some(id) = self.ends.get(&token).and_then(|end| end.id) {
                // SAFETY: objects live as long as their ends, which are removed under the lock that we hold.
                unsafe { &*id.0 }.reported.handed_out();
                return Some(Taken { id, notice });
            }
        }
    }
}

/// Takes one from a semaphore that is not zero.
fn count_down(count: &OwnedFd) {
    let _ = rustix::io::read(count, &mut [0_u8; 8]);
}

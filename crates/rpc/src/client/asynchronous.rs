//! The client under tokio.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use farcall_drive::{TokioDriver, WakeQueue};
use farcall_link::Nic;
use farcall_shm::fork::Generation;
use farcall_verbs::{Clock, Endpoint, Error, Nanos, Next, Provider, Result, WaitSet};
use tokio::sync::oneshot;

use super::ClientOptions;
use super::bootstrap::Bootstrap;
use super::erased::{AnyCaller, any_caller};
use super::session::{Repair, Session};
use crate::caller::{CallId, CallOptions};
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::wire::Status;

/// A connection to one server thread, for tasks. Clones share it; calls of all of them are outstanding together.
///
/// It is [`super::Client`] in all but waiting: results are fetched or written as the preset says. While there are none
/// the task yields to others, and sleeps after as many idle turns as the options' way of waiting says; where results are
/// fetched, already after R fetches in vain, or 7 µs of them, with the server asked to push the result. So it fetches as
/// fast as a thread while the runtime has nothing else to run, and as often when the runtime has.
///
/// A future that is dropped gives its call up: the result is thrown away when it comes, and only then is the call's
/// slot used again. Whether it was executed stays unknown.
#[derive(Clone)]
pub struct AsyncClient {
    handle: Arc<Handle>,
}

/// The last one to go ends the task.
struct Handle {
    inbox: WakeQueue<Message>,
    call_timeout: Option<Duration>,
    made_in: Generation,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The descriptor that wakes the task is shared with the parent of a forked child.
        if !self.made_in.is_inherited() {
            self.inbox.push(Message::End);
        }
    }
}

enum Message {
    Call(Waiting),
    /// To be called with the counters.
    Inspect(Box<dyn FnOnce(&Counters) + Send>),
    End,
}

/// A call that somebody awaits.
struct Waiting {
    method: u16,
    request: Vec<u8>,
    timeout: Option<Duration>,
    outcome: oneshot::Sender<std::result::Result<Vec<u8>, CallError>>,
}

impl AsyncClient {
    /// Connects to a server's bootstrap address, and spawns the task that drives the connection on the current runtime.
    ///
    /// # Errors
    /// As [`super::Client::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with IO and time enabled.
    pub async fn connect(
        provider: &dyn Provider,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> std::result::Result<Self, ConnectError> {
        let caller = any_caller(Nic::open(provider)?, &options)?;
        let descriptor = |e| ConnectError::Verbs(Error::os("connect", "a descriptor for the inbox", e));
        let inbox = WakeQueue::new().map_err(descriptor)?;
        let mut task = Task {
            session: Session::new(caller, address.into(), options),
            inbox: inbox.clone(),
            queue: VecDeque::new(),
            waiting: HashMap::new(),
            turns_to_look: TURNS_PER_LOOK,
            ended: false,
        };
        let options = &task.session.options;
        let (call_timeout, connect_timeout) = (options.call_timeout, options.connect_timeout);
        task.connect(connect_timeout).await?;
        task.session.learn_what_it_can_do();
        tokio::spawn(task.run());
        let made_in = Generation::current();
        Ok(Self { handle: Arc::new(Handle { inbox, call_timeout, made_in }) })
    }

    /// Calls and awaits the result.
    ///
    /// # Errors
    /// As [`super::Client::call`].
    pub async fn call(&self, method: u16, request: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        if self.handle.made_in.is_inherited() {
            return Err(CallError::NotSent(Broken::Forked));
        }
        let timeout = self.handle.call_timeout;
        let (outcome, ended) = oneshot::channel();
        let waiting = Waiting { method, request: request.to_vec(), timeout, outcome };
        self.handle.inbox.push(Message::Call(waiting));
        // A task that is gone took the call with it: the runtime shut down.
        ended.await.unwrap_or(Err(CallError::NotSent(Broken::Closed)))
    }

    /// Runs `look` on what happened so far, in the task. `None` if the task has ended.
    pub async fn inspect<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Counters) -> R + Send + 'static,
    ) -> Option<R> {
        if self.handle.made_in.is_inherited() {
            return None;
        }
        let (seen, result) = oneshot::channel();
        let look = move |counters: &Counters| drop(seen.send(look(counters)));
        self.handle.inbox.push(Message::Inspect(Box::new(look)));
        result.await.ok()
    }
}

/// Rounds of turns between two looks at the bootstrap connection, besides those after sleeping.
const TURNS_PER_LOOK: u32 = 256;

/// What the driver runs: a session, and those who await its calls.
struct Task {
    session: Session<dyn AnyCaller>,
    inbox: WakeQueue<Message>,
    queue: VecDeque<Waiting>,
    waiting: HashMap<CallId, Waiting>,
    turns_to_look: u32,
    ended: bool,
}

impl Task {
    fn take_messages(&mut self) {
        while let Some(message) = self.inbox.pop() {
            match message {
                Message::Call(call) => self.queue.push_back(call),
                Message::Inspect(look) => look(self.session.caller.counters()),
                Message::End => self.ended = true,
            }
        }
    }

    fn submit(&mut self, now: Nanos) {
        while let Some(call) = self.queue.pop_front() {
            if call.outcome.is_closed() {
                continue;
            }
            let deadline = call.timeout.map(|timeout| now + timeout);
            match self.session.caller.submit(
                call.method,
                &call.request,
                CallOptions { deadline, trace_id: 0 },
                now,
            ) {
                Ok(id) => drop(self.waiting.insert(id, call)),
                Err(CallError::WindowFull { .. }) => {
                    self.queue.push_front(call);
                    break;
                }
                // Whoever awaited it may be gone.
                Err(error) => drop(call.outcome.send(Err(error))),
            }
        }
        // What came together travels together; waiting for more would only be waiting.
        self.session.caller.flush(now);
    }

    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.session.caller.next_completion() {
            any = true;
            let Some(call) = self.waiting.remove(&done.call) else { continue };
            match done.result {
                // Certainly not executed: it is made again when there is a connection.
                Err(CallError::Server { status: Status::GOING_AWAY, .. }) => self.queue.push_back(call),
                result => drop(call.outcome.send(result.map(<[u8]>::to_vec))),
            }
        }
        any
    }

    fn look(&mut self) {
        self.turns_to_look = TURNS_PER_LOOK;
        self.session.look();
    }
}

impl Endpoint for Task {
    fn progress(&mut self, now: Nanos) -> Next {
        if self.inbox.has_any() {
            self.take_messages();
        }
        self.submit(now);
        let next = self.session.turns(now);
        self.turns_to_look -= 1;
        if self.turns_to_look == 0 {
            self.look();
        }
        // A place may be free again without anything to deliver: of a call that was given up.
        let may_submit = !self.queue.is_empty() && self.session.caller.available() > 0;
        if self.deliver() || may_submit { Next::Again } else { next }
    }

    fn arm(&mut self) -> Result<()> {
        self.inbox.clear_wake();
        // The next turn is the last one before sleeping, the one after it the first one after: both look.
        self.look();
        self.turns_to_look = 2;
        self.session.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.inbox.fd());
        if let Some(bootstrap) = &self.session.bootstrap {
            set.insert(bootstrap.fd());
        }
        self.session.caller.wait_set(set);
    }

    fn waits_long(&self) -> bool {
        self.session.caller.waits_long()
    }
}

impl Task {
    async fn run(mut self) {
        let mut driver = TokioDriver::new(self.session.clock, self.session.options.waiting());
        while !self.ended {
            if !self.session.caller.is_open() {
                self.repair().await;
                continue;
            }
            let over = |task: &mut Self| task.ended || !task.session.caller.is_open();
            if driver.run_until(&mut self, over).await.is_err() {
                // The reactor is gone, and the runtime with it.
                return;
            }
        }
        self.session.close();
    }

    async fn connect(&mut self, timeout: Duration) -> std::result::Result<(), ConnectError> {
        let hello = self.session.caller.hello()?;
        let address = self.session.address.clone();
        // The handshake is a few hundred bytes; it blocks a thread that is made for that.
        let opened = tokio::task::spawn_blocking(move || Bootstrap::open(&address, &hello, timeout)).await;
        let (bootstrap, welcome) =
            opened.map_err(|_| ConnectError::BadWelcome("the runtime shuts down".into()))??;
        self.session.connected(bootstrap, welcome)
    }

    /// One step towards the next connection. When the time for it is over, all calls end.
    async fn repair(&mut self) {
        let now = self.session.clock.now();
        self.progress(now);
        match self.session.repair(now) {
            Repair::None => {}
            Repair::Pause(pause) => tokio::time::sleep(pause).await,
            Repair::Connect(timeout) => {
                if self.connect(timeout).await.is_err() {
                    self.session.failed();
                }
            }
            Repair::GivenUp => {
                let why = self.session.why_broken();
                self.deliver();
                for call in self.queue.drain(..) {
                    let _ = call.outcome.send(Err(CallError::NotSent(why.clone())));
                }
                self.ended |= !self.session.options.reconnect;
            }
        }
    }
}

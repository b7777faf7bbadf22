//! The client under tokio.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use farcall_drive::Inbox;
use farcall_drive::tokio_driver::TokioDriver;
use farcall_link::{Backoff, Nic};
use farcall_verbs::{Clock, Endpoint, Error, MonotonicClock, Nanos, Next, Provider, Result, WaitSet};
use tokio::sync::oneshot;

use super::{ClientOptions, Core, Lifeline, Said, make_core};
use crate::caller::{CallId, CallOptions};
use crate::error::{Broken, CallError, ConnectError};
use crate::wire::Status;

/// A connection to one server thread, for tasks. Clones share it; calls of all of them are outstanding together.
///
/// A future that is dropped gives its call up: the result is thrown away when it comes, and only then is the call's slot
/// used again. Whether it was executed stays unknown.
#[derive(Clone)]
pub struct AsyncClient {
    handle: Arc<Handle>,
}

/// The last one to go ends the task.
struct Handle {
    inbox: Inbox<Message>,
    call_timeout: Option<Duration>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.push(Message::End);
    }
}

enum Message {
    Call(Waiting),
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
        // Tasks sleep whenever there is nothing: every result comes with a wake-up.
        let options = options.wait_by(farcall_link::Waiting::Event);
        let core = make_core(Nic::open(provider)?, &options)?;
        let descriptor = |e| ConnectError::Verbs(Error::os("connect", "a descriptor for the inbox", e));
        let inbox = Inbox::new().map_err(descriptor)?;
        let mut task = Task {
            backoff: options.backoff(),
            address: address.into(),
            endpoint: Endpoints {
                core,
                inbox: inbox.clone(),
                queue: VecDeque::new(),
                waiting: HashMap::new(),
                lifeline: None,
                turns_to_look: TURNS_PER_LOOK,
                ended: false,
            },
            clock: MonotonicClock::new(),
            options,
        };
        task.connect_once(task.options.connect_timeout).await?;
        let call_timeout = task.options.call_timeout;
        tokio::spawn(task.run());
        Ok(Self { handle: Arc::new(Handle { inbox, call_timeout }) })
    }

    /// Calls and awaits the result.
    ///
    /// # Errors
    /// As [`super::Client::call`].
    pub async fn call(&self, method: u16, request: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        let timeout = self.handle.call_timeout;
        let (outcome, ended) = oneshot::channel();
        let waiting = Waiting { method, request: request.to_vec(), timeout, outcome };
        self.handle.inbox.push(Message::Call(waiting));
        // A task that is gone took the call with it: the runtime shut down.
        ended.await.unwrap_or(Err(CallError::NotSent(Broken::Closed)))
    }
}

/// Turns between two looks at the lifeline, besides those after sleeping.
const TURNS_PER_LOOK: u32 = 4_096;

/// What the driver runs.
struct Endpoints {
    core: Box<dyn Core>,
    inbox: Inbox<Message>,
    queue: VecDeque<Waiting>,
    waiting: HashMap<CallId, Waiting>,
    lifeline: Option<Lifeline>,
    turns_to_look: u32,
    ended: bool,
}

impl Endpoints {
    fn take_messages(&mut self) {
        while let Some(message) = self.inbox.pop() {
            match message {
                Message::Call(call) => self.queue.push_back(call),
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
            match self.core.submit(call.method, &call.request, CallOptions { deadline, trace_id: 0 }, now) {
                Ok(id) => drop(self.waiting.insert(id, call)),
                Err(CallError::WindowFull { .. }) => {
                    self.queue.push_front(call);
                    return;
                }
                // Whoever awaited it may be gone.
                Err(error) => drop(call.outcome.send(Err(error))),
            }
        }
    }

    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.core.next_completion() {
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
        match self.lifeline.as_mut().map(Lifeline::look) {
            None | Some(Said::Nothing) => {}
            Some(Said::GoingAway) => self.core.set_going_away(),
            Some(Said::Gone(why)) => self.core.break_off(why),
        }
    }
}

impl Endpoint for Endpoints {
    fn progress(&mut self, now: Nanos) -> Next {
        if self.inbox.has_any() {
            self.take_messages();
        }
        self.submit(now);
        let next = self.core.turns(1, now);
        self.turns_to_look -= 1;
        if self.turns_to_look == 0 {
            self.look();
        }
        // A place may be free again without anything to deliver: of a call that was given up.
        let may_submit = !self.queue.is_empty() && self.core.available() > 0;
        if self.deliver() || may_submit { Next::Again } else { next }
    }

    fn arm(&mut self) -> Result<()> {
        self.inbox.clear_wake();
        // The next turn is the last one before sleeping, the one after it the first one after: both look.
        self.look();
        self.turns_to_look = 2;
        self.core.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.inbox.fd());
        if let Some(lifeline) = &self.lifeline {
            set.insert(lifeline.fd());
        }
        self.core.wait_set(set);
    }
}

/// The task that drives a connection and makes it again.
struct Task {
    endpoint: Endpoints,
    address: String,
    options: ClientOptions,
    backoff: Backoff,
    clock: MonotonicClock,
}

impl Task {
    async fn run(mut self) {
        let mut driver = TokioDriver::new(self.clock, farcall_link::Waiting::Event);
        while !self.endpoint.ended {
            if !self.endpoint.core.is_open() {
                self.reconnect().await;
                continue;
            }
            let over = |endpoint: &mut Endpoints| endpoint.ended || !endpoint.core.is_open();
            if driver.run_until(&mut self.endpoint, over).await.is_err() {
                // The reactor is gone, and the runtime with it.
                return;
            }
        }
        if let Some(lifeline) = self.endpoint.lifeline.as_mut() {
            lifeline.say_goodbye();
        }
        self.endpoint.core.break_off(Broken::Closed);
    }

    async fn connect_once(&mut self, timeout: Duration) -> std::result::Result<(), ConnectError> {
        let hello = self.endpoint.core.hello()?;
        let address = self.address.clone();
        // The handshake is a few hundred bytes; it blocks a thread that is made for that.
        let opened = tokio::task::spawn_blocking(move || Lifeline::open(&address, &hello, timeout)).await;
        let (lifeline, welcome) =
            opened.map_err(|_| ConnectError::BadWelcome("the runtime shuts down".into()))??;
        self.endpoint.core.welcome(welcome, self.clock.now())?;
        self.endpoint.lifeline = Some(lifeline);
        self.backoff.reset();
        Ok(())
    }

    /// Connects again; calls whose deadline passes meanwhile end. When the time for it is over, all end.
    async fn reconnect(&mut self) {
        self.endpoint.lifeline = None;
        let why = self.endpoint.core.broken().cloned().unwrap_or(Broken::Closed);
        let until = self.clock.now() + self.options.reconnect_timeout;
        while self.options.reconnect && !self.endpoint.ended {
            self.endpoint.progress(self.clock.now());
            let left = until.since(self.clock.now());
            if left.is_zero() {
                break;
            }
            if self.connect_once(self.options.connect_timeout.min(left)).await.is_ok() {
                return;
            }
            tokio::time::sleep(self.backoff.next_delay().min(left)).await;
        }
        self.endpoint.core.fail_all(&why);
        self.endpoint.deliver();
        for call in self.endpoint.queue.drain(..) {
            let _ = call.outcome.send(Err(CallError::NotSent(why.clone())));
        }
        if !self.options.reconnect {
            self.endpoint.ended = true;
        } else {
            tokio::time::sleep(self.backoff.next_delay()).await;
        }
    }
}

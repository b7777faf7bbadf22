//! The client under tokio.

use std::sync::Arc;
use std::time::Duration;

use farcall_drive::{TokioDriver, WakeQueue};
use farcall_link::Nic;
use farcall_shm::fork::Generation;
use farcall_verbs::{Clock, Endpoint, Error, Nanos, Next, Provider, Result, WaitSet};
use tokio::sync::oneshot;

use super::automatic::Attempts;
use super::bootstrap::Bootstrap;
use super::erased::any_caller;
use super::session::{Repair, Session};
use super::shared::{SharedCall, SharedSession};
use super::{ClientOptions, PerCall};
use crate::caller::CallOptions;
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::tune::Decision;

/// A connection to one server thread, for tasks. Clones share it; calls of all of them are outstanding together.
///
/// It is [`super::Client`] in all but waiting: results are fetched or written as the preset says. While there are none
/// the task yields to others, and sleeps after as many idle turns as the options' way of waiting says; where results are
/// fetched, already after R fetches in vain, or 7 µs of them, with the server asked to push the result. So it fetches as
/// fast as a thread while the runtime has nothing else to run, and as often when the runtime has.
///
/// A future that is dropped gives its call up: a handler that answers later is told, the result is thrown away when it
/// comes, and only then is the call's slot used again. Whether it was executed stays unknown.
#[derive(Clone)]
pub struct AsyncClient {
    handle: Arc<Handle>,
}

/// The last one to go ends the task.
struct Handle {
    inbox: WakeQueue<Message>,
    call_timeout: Option<Duration>,
    made_in: Generation,
    decision: Option<Decision>,
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
    /// Somebody waits no longer for a call.
    GivenUp,
    /// To be called with the counters.
    Inspect(Box<dyn FnOnce(&Counters) + Send>),
    End,
}

/// Tells the task when a future is dropped before its call has ended.
struct GivesUp<'a>(Option<&'a Handle>);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.0.filter(|handle| !handle.made_in.is_inherited()) {
            handle.inbox.push(Message::GivenUp);
        }
    }
}

/// A call that somebody awaits.
struct Waiting {
    method: u16,
    request: Vec<u8>,
    options: PerCall,
    usual_timeout: Option<Duration>,
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
        let (nic, address) = (Nic::open(provider)?, address.into());
        let mut attempts = Attempts::new(provider, &address, options)?;
        let descriptor = |e| ConnectError::Verbs(Error::os("connect", "a descriptor for the inbox", e));
        let inbox = WakeQueue::new().map_err(descriptor)?;
        let call_timeout = attempts.options().call_timeout;
        let mut task = loop {
            match Task::start(&nic, address.clone(), attempts.options(), inbox.clone()).await {
                Ok(task) => break task,
                Err(error) if attempts.goes_on_after(&error) => {}
                Err(error) => return Err(error),
            }
        };
        task.shared.session.learn_what_it_can_do();
        tokio::spawn(task.run());
        let (made_in, decision) = (Generation::current(), attempts.decision());
        Ok(Self { handle: Arc::new(Handle { inbox, call_timeout, made_in, decision }) })
    }

    /// As [`super::ClientOf::decision`].
    pub fn decision(&self) -> Option<&Decision> {
        self.handle.decision.as_ref()
    }

    /// Calls and awaits the result.
    ///
    /// # Errors
    /// As [`super::Client::call`].
    pub async fn call(&self, method: u16, request: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        self.call_with(method, request, PerCall::default()).await
    }

    /// As [`AsyncClient::call`], with a timeout and a trace of the caller's own. The timeout counts from the moment when
    /// the connection's task takes the call.
    ///
    /// # Errors
    /// As [`super::Client::call`].
    pub async fn call_with(
        &self,
        method: u16,
        request: &[u8],
        options: PerCall,
    ) -> std::result::Result<Vec<u8>, CallError> {
        if self.handle.made_in.is_inherited() {
            return Err(CallError::NotSent(Broken::Forked));
        }
        // Dropped after the receiver of the outcome.
        let mut gives_up = GivesUp(Some(&self.handle));
        let (outcome, ended) = oneshot::channel();
        let usual_timeout = self.handle.call_timeout;
        let waiting = Waiting { method, request: request.to_vec(), options, usual_timeout, outcome };
        self.handle.inbox.push(Message::Call(waiting));
        // A task that is gone took the call with it: the runtime shut down.
        let outcome = ended.await.unwrap_or(Err(CallError::NotSent(Broken::Closed)));
        gives_up.0 = None;
        outcome
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

impl SharedCall for Waiting {
    fn method(&self) -> u16 {
        self.method
    }

    fn request(&self) -> &[u8] {
        &self.request
    }

    fn options(&self, now: Nanos) -> CallOptions {
        self.options.from(now, self.usual_timeout)
    }

    fn is_wanted(&self) -> bool {
        !self.outcome.is_closed()
    }

    fn end(self, outcome: std::result::Result<&[u8], CallError>) {
        let _ = self.outcome.send(outcome.map(<[u8]>::to_vec));
    }
}

/// What the driver runs.
struct Task {
    shared: SharedSession<Waiting>,
    inbox: WakeQueue<Message>,
    ended: bool,
}

impl Task {
    /// Connects.
    async fn start(
        nic: &Nic,
        address: String,
        options: ClientOptions,
        inbox: WakeQueue<Message>,
    ) -> std::result::Result<Self, ConnectError> {
        let (caller, timeout) = (any_caller(nic.clone(), options.config.clone())?, options.connect_timeout);
        let shared = SharedSession::new(Session::new(caller, address, options));
        let mut task = Self { shared, inbox, ended: false };
        task.connect(timeout).await?;
        Ok(task)
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.inbox.pop() {
            match message {
                Message::Call(call) => self.shared.push(call),
                Message::GivenUp => self.shared.cancel_unwanted(),
                Message::Inspect(look) => look(self.shared.session.caller.counters()),
                Message::End => self.ended = true,
            }
        }
    }
}

impl Endpoint for Task {
    fn progress(&mut self, now: Nanos) -> Next {
        if self.inbox.has_any() {
            self.take_messages();
        }
        self.shared.progress(now)
    }

    fn arm(&mut self) -> Result<()> {
        self.inbox.clear_wake();
        self.shared.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.inbox.fd());
        self.shared.wait_set(set);
    }

    fn waits_long(&self) -> bool {
        self.shared.waits_long()
    }
}

impl Task {
    async fn run(mut self) {
        let mut driver = TokioDriver::new(self.shared.session.clock, self.shared.session.options.waiting());
        while !self.ended {
            if !self.shared.session.caller.is_open() {
                self.repair().await;
                continue;
            }
            let over = |task: &mut Self| task.ended || !task.shared.session.caller.is_open();
            if driver.run_until(&mut self, over).await.is_err() {
                // The reactor is gone, and the runtime with it.
                return;
            }
        }
        self.shared.session.close();
    }

    async fn connect(&mut self, timeout: Duration) -> std::result::Result<(), ConnectError> {
        let hello = self.shared.session.caller.hello()?;
        let address = self.shared.session.address.clone();
        // The handshake is a few hundred bytes; it blocks a thread that is made for that.
        let opened = tokio::task::spawn_blocking(move || Bootstrap::open(&address, &hello, timeout)).await;
        let (bootstrap, welcome) =
            opened.map_err(|_| ConnectError::BadWelcome("the runtime shuts down".into()))??;
        self.shared.session.connected(bootstrap, welcome)
    }

    /// One step towards the next connection. When the time for it is over, all calls end.
    async fn repair(&mut self) {
        let now = self.shared.session.clock.now();
        self.progress(now);
        match self.shared.session.repair(now) {
            Repair::None => {}
            Repair::Pause(pause) => tokio::time::sleep(pause).await,
            Repair::Connect(timeout) => {
                if self.connect(timeout).await.is_err() {
                    self.shared.session.failed();
                }
            }
            Repair::GivenUp => {
                let why = self.shared.session.why_broken();
                self.shared.give_up(&why);
                self.ended |= !self.shared.session.options.reconnect;
            }
        }
    }
}

//! The client under tokio.

use std::sync::Arc;
use std::time::Duration;

use farcall_drive::{TokioDriver, WakeQueue};
use farcall_link::Nic;
use farcall_shm::fork::Generation;
use farcall_verbs::{Clock, Endpoint, Error, Nanos, Progress, Result, WaitSet};
use tokio::sync::oneshot;

use super::bootstrap::Bootstrap;
use super::erased::any_caller;
use super::preset_fallback::PresetFallback;
use super::session::{ReconnectAction, Session};
use super::shared::{SharedCall, SharedSession};
use super::{CallOptions, ClientOptions};
use crate::caller::CallContext;
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::tune::Decision;

/// A connection to one server thread, for tasks. Clones share it, and their calls are outstanding concurrently.
///
/// It behaves like [`super::Client`] except for waiting: results are fetched or written according to the preset. While
/// there are no results, the task yields to other tasks. It sleeps after the number of idle turns of the options' wait
/// strategy. Where results are fetched, it sleeps already after R fetches without a result, or 7 µs of them, and
/// requests the server to push the result. It therefore fetches as often as a thread while the runtime has no other
/// tasks to run, and as often as the runtime permits otherwise.
///
/// Dropping a future cancels its call. A handler that has deferred the call is notified. The result is discarded when
/// it arrives, and only then is the call's slot reused. It remains unknown whether the call was executed.
#[derive(Clone)]
pub struct AsyncClient {
    handle: Arc<Handle>,
}

farcall_verbs::opaque_debug!(AsyncClient);

/// Dropping the last handle ends the task.
struct Handle {
    inbox: WakeQueue<Message>,
    call_timeout: Option<Duration>,
    made_in: Generation,
    decision: Option<Decision>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child shares the descriptor that wakes the task with its parent.
        if !self.made_in.is_inherited() {
            self.inbox.push(Message::End);
        }
    }
}

enum Message {
    Call(AwaitedCall),
    /// A caller has dropped a future.
    Cancelled,
    /// A function to call with the counters.
    Inspect(Box<dyn FnOnce(&Counters) + Send>),
    End,
}

/// Notifies the task if a future is dropped before its call has ended.
struct CancelOnDrop<'a>(Option<&'a Handle>);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.0.filter(|handle| !handle.made_in.is_inherited()) {
            handle.inbox.push(Message::Cancelled);
        }
    }
}

/// A call that is awaited.
struct AwaitedCall {
    method: u16,
    request: Vec<u8>,
    options: CallOptions,
    usual_timeout: Option<Duration>,
    outcome: oneshot::Sender<std::result::Result<Vec<u8>, CallError>>,
}

impl AsyncClient {
    /// Connects to a server's bootstrap address, and spawns the task that drives the connection on the current runtime.
    ///
    /// # Errors
    /// Returns the errors of [`super::Client::connect`].
    ///
    /// # Panics
    /// Panics outside of a tokio runtime with IO and time enabled.
    pub async fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> std::result::Result<Self, ConnectError> {
        let address = address.into();
        let mut presets = PresetFallback::new(nic, &address, options)?;
        let descriptor = |e| ConnectError::Verbs(Error::os("connect", "a descriptor for the inbox", e));
        let inbox = WakeQueue::new().map_err(descriptor)?;
        let call_timeout = presets.options().call_timeout;
        let mut task = loop {
            match Task::start(nic, address.clone(), presets.options(), inbox.clone()).await {
                Ok(task) => break task,
                Err(error) if presets.select_next(&error) => {}
                Err(error) => return Err(error),
            }
        };
        task.shared.session.init_profile();
        tokio::spawn(task.run());
        let (made_in, decision) = (Generation::current(), presets.decision());
        Ok(Self { handle: Arc::new(Handle { inbox, call_timeout, made_in, decision }) })
    }

    /// See [`super::ClientOf::decision`].
    pub fn decision(&self) -> Option<&Decision> {
        self.handle.decision.as_ref()
    }

    /// Calls and awaits the result.
    ///
    /// # Errors
    /// Returns the errors of [`super::Client::call`].
    pub async fn call(&self, method: u16, request: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        self.call_with(method, request, CallOptions::default()).await
    }

    /// Calls like [`AsyncClient::call`], with a timeout and a trace specified by the caller. The timeout starts when
    /// the connection's task dequeues the call.
    ///
    /// # Errors
    /// Returns the errors of [`super::Client::call`].
    pub async fn call_with(
        &self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> std::result::Result<Vec<u8>, CallError> {
        if self.handle.made_in.is_inherited() {
            return Err(CallError::NotSent(Broken::Forked));
        }
        // Dropped after the receiver of the outcome.
        let mut cancel_on_drop = CancelOnDrop(Some(&self.handle));
        let (outcome, ended) = oneshot::channel();
        let usual_timeout = self.handle.call_timeout;
        let waiting = AwaitedCall { method, request: request.to_vec(), options, usual_timeout, outcome };
        self.handle.inbox.push(Message::Call(waiting));
        // If the runtime shut down, the task was dropped together with the call.
        let outcome = ended.await.unwrap_or(Err(CallError::NotSent(Broken::Closed)));
        cancel_on_drop.0 = None;
        outcome
    }

    /// Runs `inspect` on the counters, in the task. Returns `None` if the task has ended.
    pub async fn inspect<R: Send + 'static>(
        &self,
        inspect: impl FnOnce(&Counters) -> R + Send + 'static,
    ) -> Option<R> {
        if self.handle.made_in.is_inherited() {
            return None;
        }
        let (seen, result) = oneshot::channel();
        let inspect = move |counters: &Counters| drop(seen.send(inspect(counters)));
        self.handle.inbox.push(Message::Inspect(Box::new(inspect)));
        result.await.ok()
    }
}

impl SharedCall for AwaitedCall {
    fn method(&self) -> u16 {
        self.method
    }

    fn request(&self) -> &[u8] {
        &self.request
    }

    fn context(&self, now: Nanos) -> CallContext {
        self.options.context(now, self.usual_timeout)
    }

    fn is_wanted(&self) -> bool {
        !self.outcome.is_closed()
    }

    fn end(self, outcome: std::result::Result<&[u8], CallError>) {
        let _ = self.outcome.send(outcome.map(<[u8]>::to_vec));
    }
}

/// The endpoint that the driver runs.
struct Task {
    shared: SharedSession<AwaitedCall>,
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
                Message::Cancelled => self.shared.cancel_unwanted(),
                Message::Inspect(inspect) => inspect(self.shared.session.caller.counters()),
                Message::End => self.ended = true,
            }
        }
    }
}

impl Endpoint for Task {
    fn progress(&mut self, now: Nanos) -> Progress {
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

    fn prefers_sleep(&self) -> bool {
        self.shared.prefers_sleep()
    }
}

impl Task {
    async fn run(mut self) {
        let mut driver = TokioDriver::new(self.shared.session.clock, self.shared.session.options.waiting());
        while !self.ended {
            if !self.shared.session.caller.is_open() {
                self.try_reconnect().await;
                continue;
            }
            let over = |task: &mut Self| task.ended || !task.shared.session.caller.is_open();
            if driver.run_until(&mut self, over).await.is_err() {
                // The reactor, and with it the runtime, has shut down.
                return;
            }
        }
        self.shared.session.close();
    }

    async fn connect(&mut self, timeout: Duration) -> std::result::Result<(), ConnectError> {
        let hello = self.shared.session.caller.hello()?;
        let address = self.shared.session.address.clone();
        // The handshake is a few hundred bytes. It blocks a thread of the runtime's blocking pool.
        let opened = tokio::task::spawn_blocking(move || Bootstrap::open(&address, &hello, timeout)).await;
        let (bootstrap, welcome) =
            opened.map_err(|_| ConnectError::BadWelcome("the runtime shuts down".into()))??;
        self.shared.session.connected(bootstrap, welcome)
    }

    /// Makes one step towards the next connection. After the reconnect timeout all calls end.
    async fn try_reconnect(&mut self) {
        let now = self.shared.session.clock.now();
        self.progress(now);
        match self.shared.session.reconnect_action(now) {
            ReconnectAction::None => {}
            ReconnectAction::Pause(pause) => tokio::time::sleep(pause).await,
            ReconnectAction::Connect(timeout) => {
                if self.connect(timeout).await.is_err() {
                    self.shared.session.failed();
                }
            }
            ReconnectAction::Abandoned => {
                let why = self.shared.session.why_broken();
                self.shared.abandon(&why);
                self.ended |= !self.shared.session.options.reconnect;
            }
        }
    }
}

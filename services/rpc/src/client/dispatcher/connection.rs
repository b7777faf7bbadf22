//! One of the dispatcher's connections: a session that reconnects without blocking the others.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use farcall_drive::Parker;
use farcall_link::bootstrap::Welcome;
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};

use super::super::bootstrap::Bootstrap;
use super::super::erased::AnyCaller;
use super::super::session::{ReconnectAction, Session};
use super::super::shared::SharedSession;
use super::mailbox::LocalCall;
use crate::error::{Broken, ConnectError};

/// Result of a thread that connects.
type Attempt = std::result::Result<(Bootstrap, Welcome), ConnectError>;

pub(super) struct Connection {
    pub shared: SharedSession<LocalCall>,
    /// An attempt to connect blocks on the server, so another thread makes it.
    attempt: Option<Receiver<Attempt>>,
    sleeper: Arc<Parker>,
}

impl Connection {
    /// Creates a connection. `sleeper` is the dispatcher's.
    pub fn new(session: Session<dyn AnyCaller>, sleeper: Arc<Parker>) -> Self {
        Self { shared: SharedSession::new(session), attempt: None, sleeper }
    }

    /// Ends all calls.
    pub fn close(&mut self) {
        self.shared.session.close();
        self.shared.session.caller.fail_all(&Broken::Closed);
        self.shared.abandon(&Broken::Closed);
    }

    /// Makes one step towards the next connection.
    #[cold]
    fn try_reconnect(&mut self, now: Nanos) -> Progress {
        if let Some(attempt) = &self.attempt {
            let outcome = match attempt.try_recv() {
                Ok(outcome) => outcome,
                Err(TryRecvError::Empty) => return self.shared.progress(now).merge(Progress::IDLE),
                Err(TryRecvError::Disconnected) => Err(ConnectError::BadWelcome("no thread connects".into())),
            };
            self.attempt = None;
            let session = &mut self.shared.session;
            if outcome.and_then(|(bootstrap, welcome)| session.connected(bootstrap, welcome)).is_err() {
                session.failed();
            }
            return Progress::Again;
        }
        self.shared.progress(now);
        match self.shared.session.reconnect_action(now) {
            ReconnectAction::None => Progress::Again,
            ReconnectAction::Pause(pause) => Progress::Idle { until: Some(now + pause) },
            ReconnectAction::Connect(timeout) => {
                if self.begin_attempt(timeout).is_err() {
                    self.shared.session.failed();
                }
                Progress::IDLE
            }
            ReconnectAction::Abandoned => {
                let why = self.shared.session.why_broken();
                self.shared.abandon(&why);
                Progress::IDLE
            }
        }
    }

    fn begin_attempt(&mut self, timeout: std::time::Duration) -> std::result::Result<(), ConnectError> {
        let hello = self.shared.session.caller.hello()?;
        let address = self.shared.session.address.clone();
        let (result, attempt) = mpsc::channel();
        let sleeper = Arc::clone(&self.sleeper);
        let connect = move || {
            // The receiver no longer exists if the dispatcher has ended.
            let _ = result.send(Bootstrap::open(&address, &hello, timeout));
            sleeper.unpark_if_parked();
        };
        let thread = std::thread::Builder::new().name("farcall connect".into()).spawn(connect);
        thread.map_err(|e| farcall_verbs::Error::os("connect", "a thread that connects", e))?;
        self.attempt = Some(attempt);
        Ok(())
    }
}

impl Endpoint for Connection {
    fn progress(&mut self, now: Nanos) -> Progress {
        if self.shared.session.caller.is_open() { self.shared.progress(now) } else { self.try_reconnect(now) }
    }

    fn arm(&mut self) -> Result<()> {
        if self.shared.session.caller.is_open() { self.shared.arm() } else { Ok(()) }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if self.shared.session.caller.is_open() {
            self.shared.wait_set(set);
        }
    }

    fn prefers_sleep(&self) -> bool {
        self.shared.prefers_sleep()
    }
}

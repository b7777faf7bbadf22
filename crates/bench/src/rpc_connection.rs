//! A client's connection to an RPC service: the handshake over TCP, then calls over verbs, polled by the calling thread.

use farcall_link::bootstrap::{Initiator, Notice, VersionRange};
use farcall_link::{Geometry, Nic, Plan};
use farcall_rpc::{CallError, CallId, CallOptions, Caller, CallerConfig, Completion, Path};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Provider};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Turns between two looks at the clock: deadlines and wake-ups need no finer time.
const TURNS_PER_CLOCK: u32 = 16;

/// There is no connection.
#[derive(Debug, thiserror::Error)]
pub enum RpcConnectError {
    /// The bootstrap address cannot be reached.
    #[error("cannot reach {address}: {source}; is the service running?")]
    Unreachable {
        /// Which address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The service hung up.
    #[error("{0} hung up during the handshake")]
    HungUp(SocketAddr),
    /// The service refused, or is none.
    #[error(transparent)]
    Handshake(#[from] farcall_link::bootstrap::BootstrapError),
    /// The endpoint could not be made or connected.
    #[error(transparent)]
    Connect(#[from] farcall_rpc::ConnectError),
    /// The device failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
}

/// A call did not bring a result.
#[derive(Debug, thiserror::Error)]
pub enum RpcCallError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The connection broke.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Nothing came.
    #[error("no answer within {0:?}")]
    Silent(Duration),
}

/// A connection to one server thread. Dropping it says goodbye.
pub struct RpcConnection<P> {
    caller: Caller<P>,
    /// Open as long as the connection is used: its hang-up tells the server that this end is gone.
    bootstrap: TcpStream,
    initiator: Initiator,
    clock: MonotonicClock,
    now: Nanos,
    turns: u32,
}

impl<P: Path> RpcConnection<P> {
    /// Connects to the service whose bootstrap address is `address`, over the first device of `provider`, for up to
    /// `window` calls at a time. Waits at most `patience` for each answer of the handshake.
    ///
    /// # Errors
    /// When there is no device, or the service cannot be reached or refuses.
    pub fn connect(
        provider: &dyn Provider,
        address: SocketAddr,
        window: u32,
        patience: Duration,
    ) -> Result<Self, RpcConnectError> {
        let unreachable = |source| RpcConnectError::Unreachable { address, source };
        let clock = MonotonicClock::new();
        let plan = Plan { response: P::AXIS, geometry: geometry(window), ..Plan::default() };
        // R and F stay as they are: experiments compare runs, and a choice in the middle of one would not be alike in all.
        let config = CallerConfig { plan, tune_while_running: false, ..CallerConfig::default() };
        let mut caller = Caller::<P>::new(Nic::open(provider)?, config)?;
        let hello = caller.hello()?;
        let mut bootstrap = TcpStream::connect_timeout(&address, patience).map_err(unreachable)?;
        bootstrap.set_read_timeout(Some(patience)).map_err(unreachable)?;
        let mut initiator = Initiator::new(VersionRange::CURRENT);
        bootstrap.write_all(&initiator.hello(&hello)).map_err(unreachable)?;
        let mut bytes = [0; 4096];
        let welcome = loop {
            let count = bootstrap.read(&mut bytes).map_err(unreachable)?;
            if count == 0 {
                return Err(RpcConnectError::HungUp(address));
            }
            if let (_, Some(welcome)) = initiator.feed_welcome(&bytes[..count])? {
                break welcome;
            }
        };
        caller.welcome(welcome, clock.now())?;
        Ok(Self { caller, bootstrap, initiator, clock, now: clock.now(), turns: 0 })
    }

    /// Begins a call; see [`Caller::submit`].
    ///
    /// # Errors
    /// When the window is full, or the request too long.
    #[inline]
    pub fn submit(&mut self, method: u16, payload: &[u8]) -> Result<CallId, CallError> {
        self.caller.submit(method, payload, CallOptions::default(), self.now)
    }

    /// Does what can be done without waiting.
    #[inline]
    pub fn progress(&mut self) {
        self.turns += 1;
        if self.turns >= TURNS_PER_CLOCK {
            self.turns = 0;
            self.now = self.clock.now();
        }
        // The one who polls, polls again, whatever is to be done next.
        let _ = self.caller.progress(self.now);
    }

    /// The next call that ended; see [`Caller::next_completion`].
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        self.caller.next_completion()
    }

    /// The endpoint, for its counters and state.
    #[must_use]
    pub fn caller(&self) -> &Caller<P> {
        &self.caller
    }

    /// WRITEs and READs so far: requests and fetches of this end, and results written by the other.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let counters = self.caller.counters();
        counters.messages.get() + counters.reads.get() + counters.replied.get() + counters.notified.get()
    }

    /// Makes one call and polls for its result, which `take` gets. No other call may be under way.
    ///
    /// # Errors
    /// When the call fails, the connection breaks, or nothing comes within `patience`.
    pub fn call<T>(
        &mut self,
        method: u16,
        payload: &[u8],
        patience: Duration,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, RpcCallError> {
        const POLLS_PER_CHECK: u32 = 4096;
        self.submit(method, payload)?;
        let mut since = None;
        loop {
            for _ in 0..POLLS_PER_CHECK {
                self.progress();
                if let Some(completion) = self.caller.next_completion() {
                    return Ok(take(completion.result?));
                }
            }
            if let Some(broken) = self.caller.broken() {
                return Err(RpcCallError::Lost(broken.to_string()));
            }
            if since.get_or_insert_with(Instant::now).elapsed() > patience {
                return Err(RpcCallError::Silent(patience));
            }
        }
    }
}

impl<P> Drop for RpcConnection<P> {
    fn drop(&mut self) {
        // Nobody comes back for this session. A server that is gone need not know.
        let _ = self.bootstrap.write_all(&self.initiator.notice(Notice::Goodbye));
    }
}

/// Slots for a window of calls. A slot is free again a little after its call ended, so there are twice as many.
fn geometry(window: u32) -> Geometry {
    let slots = (2 * window).next_power_of_two().clamp(16, u32::from(Geometry::WINDOW_MAX));
    Geometry { window: slots as u16, ..Geometry::default() }
}

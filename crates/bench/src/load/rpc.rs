//! The key-value service over Farcall RPC as a target.

use super::target::{Outcome, Request, Target, TargetError};
use farcall_kv::store::PutMode;
use farcall_kv::wire::{Request as KvRequest, Status, decode_item, decode_version};
use farcall_link::bootstrap::{Initiator, Notice, VersionRange};
use farcall_link::{Geometry, Nic, Plan};
use farcall_rpc::{CallError, CallId, CallOptions, Caller, CallerConfig, Executed, Path};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Provider};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Turns between two looks at the clock: deadlines and wake-ups need no finer time.
const TURNS_PER_CLOCK: u32 = 16;
/// How long the one-time probe of READ times may take.
const PROBE_PATIENCE: Duration = Duration::from_millis(50);
/// More than a connection's window can hold.
const CALLS_MAX: usize = 1024;

/// A connection to a key-value service of one partition. The calling thread polls.
pub struct RpcTarget<P> {
    caller: Caller<P>,
    /// Open as long as the connection is used: its hang-up tells the server that this end is gone.
    bootstrap: TcpStream,
    initiator: Initiator,
    clock: MonotonicClock,
    now: Nanos,
    turns: u32,
    /// The slot of each call under way, by the call's number, and whether it is a read.
    calls: Box<[(u32, bool)]>,
    payload: Vec<u8>,
}

impl<P: Path> RpcTarget<P> {
    /// Connects to the service whose bootstrap address is `address`, over the first device of `provider`, for up to
    /// `window` calls at a time.
    ///
    /// # Errors
    /// When there is no device, or the service cannot be reached or refuses.
    pub fn connect(
        provider: &dyn Provider,
        address: SocketAddr,
        window: u32,
        patience: Duration,
    ) -> Result<Self, TargetError> {
        let lost = |what: &dyn std::fmt::Display| TargetError::Lost(what.to_string());
        let nic = Nic::open(provider).map_err(|error| lost(&error))?;
        let clock = MonotonicClock::new();
        let plan = Plan { response: P::AXIS, geometry: geometry(window), ..Plan::default() };
        let config = CallerConfig { plan, ..CallerConfig::default() };
        let mut caller = Caller::<P>::new(nic, config).map_err(|error| lost(&error))?;
        let hello = caller.hello().map_err(|error| lost(&error))?;
        let mut stream = TcpStream::connect(address).map_err(|error| lost(&error))?;
        stream.set_read_timeout(Some(patience)).map_err(|error| lost(&error))?;
        let mut initiator = Initiator::new(VersionRange::CURRENT);
        stream.write_all(&initiator.hello(&hello)).map_err(|error| lost(&error))?;
        let mut bytes = [0; 4096];
        let welcome = loop {
            let count = stream.read(&mut bytes).map_err(|error| lost(&error))?;
            if count == 0 {
                return Err(lost(&"the server hung up during the handshake"));
            }
            let (_, welcome) = initiator.feed_welcome(&bytes[..count]).map_err(|error| lost(&error))?;
            if let Some(welcome) = welcome {
                break welcome;
            }
        };
        caller.welcome(welcome, clock.now()).map_err(|error| lost(&error))?;
        caller.probe(&clock, PROBE_PATIENCE);
        let now = clock.now();
        let calls = vec![(0, false); CALLS_MAX].into_boxed_slice();
        Ok(Self {
            caller,
            bootstrap: stream,
            initiator,
            clock,
            now,
            turns: 0,
            calls,
            payload: Vec::with_capacity(4096),
        })
    }

    /// WRITEs and READs that this end posted so far, and WRITEs that the other end answered with.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let counters = self.caller.counters();
        counters.messages.get() + counters.reads.get() + counters.replied.get() + counters.notified.get()
    }

    #[inline]
    fn progress(&mut self) {
        self.turns += 1;
        if self.turns >= TURNS_PER_CLOCK {
            self.turns = 0;
            self.now = self.clock.now();
        }
        // The caller of `poll` polls again, whatever is to be done next.
        let _ = self.caller.progress(self.now);
    }

    fn place(call: CallId) -> usize {
        call.0 as usize % CALLS_MAX
    }

    fn check_connection(&self) -> Result<(), TargetError> {
        match self.caller.broken() {
            None => Ok(()),
            Some(broken) => Err(TargetError::Lost(broken.to_string())),
        }
    }
}

impl<P: Path> Target for RpcTarget<P> {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let (request, is_read) = match request {
            Request::Get { key } => (KvRequest::Get { key }, true),
            Request::Put { key, value } => {
                (KvRequest::Put { key, value, flags: 0, ttl_ms: 0, mode: PutMode::Set }, false)
            }
        };
        self.payload.clear();
        request.encode(&mut self.payload);
        let method = request.method().id();
        let call = self.caller.submit(method, &self.payload, CallOptions::default(), self.now);
        let call = call.map_err(|error| TargetError::Protocol(error.to_string()))?;
        self.calls[Self::place(call)] = (slot, is_read);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        self.progress();
        while let Some(completion) = self.caller.next_completion() {
            let (slot, is_read) = self.calls[Self::place(completion.call)];
            done(slot, outcome(&completion.result, is_read)?);
        }
        self.check_connection()
    }
}

/// Slots for a window of calls. A slot is free again a little after its call ended, so there are twice as many.
fn geometry(window: u32) -> Geometry {
    let slots = (2 * window).next_power_of_two().clamp(16, u32::from(Geometry::WINDOW_MAX));
    Geometry { window: slots as u16, ..Geometry::default() }
}

impl<P> Drop for RpcTarget<P> {
    fn drop(&mut self) {
        // Nobody comes back for this session. A server that is gone need not know.
        let _ = self.bootstrap.write_all(&self.initiator.notice(Notice::Goodbye));
    }
}

/// What an answer means.
#[inline]
fn outcome<'a>(result: &Result<&'a [u8], CallError>, is_read: bool) -> Result<Outcome<'a>, TargetError> {
    let broken = |error: farcall_kv::wire::ReplyError| TargetError::Protocol(error.to_string());
    match result {
        Ok(reply) if is_read => {
            Ok(decode_item(reply).map_err(broken)?.map_or(Outcome::Absent, |item| Outcome::Value(item.value)))
        }
        Ok(reply) => match decode_version(reply).map_err(broken)? {
            (Status::Ok, _) => Ok(Outcome::Stored),
            _ => Ok(Outcome::Refused),
        },
        Err(error) if error.executed() == Executed::Unknown => Ok(Outcome::Unknown),
        Err(_) => Ok(Outcome::Refused),
    }
}

//! A server and clients in one thread, in virtual time, over the software RNIC.
#![allow(dead_code)]

pub mod rogue;
pub mod sender;

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_link::bootstrap::Refusal;
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Clock, Endpoint, Nanos, Progress, VirtualClock};

/// Deadline of every wait: afterwards a test fails. Not a measurement.
pub const LOST: Duration = Duration::from_secs(20);

/// Limit of a wait: [`LOST`], and at least a number of iterations that suffices if the device's service thread could
/// run in the meantime.
pub struct Patience {
    start: Instant,
    turns: u32,
}

impl Patience {
    pub fn new() -> Self {
        Self { start: Instant::now(), turns: 0 }
    }

    /// Counts an iteration. Returns whether the limit is exceeded.
    pub fn is_over(&mut self) -> bool {
        self.turns += 1;
        self.turns > 500_000 && self.start.elapsed() > LOST
    }
}

/// A clock that server and test share.
#[derive(Clone, Default)]
pub struct Time(pub Arc<VirtualClock>);

impl Clock for Time {
    fn now(&self) -> Nanos {
        self.0.now()
    }
}

pub const ECHO: u16 = 1;
pub const SLOW: u16 = 2;
pub const PANIC: u16 = 3;
pub const REFUSE: u16 = 4;
/// Answers with the number of bytes that the request's u32 contains.
pub const MAKE: u16 = 5;
/// Defers its answer, which is the request, to the test.
pub const LATER: u16 = 6;
/// The same, but returns an error at once.
pub const LATER_NOT: u16 = 7;

/// The service of the tests, which counts executed calls.
pub struct Service {
    pub time: Time,
    pub executed: u64,
    /// The connection of the last call.
    pub last_connection: u32,
    /// The number and the trace of the last call.
    pub last_call: (u64, u64),
    /// The deadline of the last call.
    pub last_deadline: Option<Nanos>,
    pub closed: Vec<u32>,
    pub slow: Duration,
    /// Calls to be answered.
    pub later: Vec<(Deferred, Vec<u8>)>,
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

impl Handler for Service {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        self.executed += 1;
        self.last_connection = call.connection();
        self.last_call = (call.call_id(), call.trace_id());
        self.last_deadline = call.deadline();
        match call.method() {
            ECHO => reply.extend_from_slice(call.payload()),
            SLOW => {
                self.time.0.advance(self.slow);
                reply.extend_from_slice(call.payload());
            }
            PANIC => panic!("told to"),
            REFUSE => return Err(HandlerError::new(42, "no")),
            MAKE => {
                let len = u32::from_le_bytes(call.payload().try_into().unwrap()) as usize;
                // In uneven pieces, across the boundary between slot and spill.
                pattern(len).chunks(1_000).for_each(|piece| reply.extend_from_slice(piece));
            }
            LATER => {
                reply.extend_from_slice(b"to be forgotten");
                let token = reply.defer()?;
                self.later.push((token, call.payload().to_vec()));
            }
            LATER_NOT => {
                self.later.push((reply.defer()?, Vec::new()));
                return Err(HandlerError::new(7, "not later"));
            }
            other => return Err(HandlerError::unknown_method(other)),
        }
        Ok(())
    }

    fn closed(&mut self, connection: u32) {
        self.closed.push(connection);
    }
}

pub type Server = Responder<Service, Time>;

pub struct World {
    pub time: Time,
    pub nic: Nic,
    pub server: Server,
}

impl World {
    pub fn new() -> Self {
        Self::with(ResponderConfig::default())
    }

    pub fn with(config: ResponderConfig) -> Self {
        Self::on(Nic::open(&SoftNic::new()).unwrap(), config)
    }

    /// Creates a world on the test's own device.
    pub fn on(nic: Nic, config: ResponderConfig) -> Self {
        let time = Time::default();
        let server = Self::start(&nic, &time, config, 1);
        Self { time, nic, server }
    }

    fn start(nic: &Nic, time: &Time, config: ResponderConfig, incarnation: u64) -> Server {
        let service = Service {
            time: time.clone(),
            executed: 0,
            last_connection: 0,
            last_call: (0, 0),
            last_deadline: None,
            closed: Vec::new(),
            slow: Duration::from_micros(50),
            later: Vec::new(),
        };
        Responder::new(nic.clone(), config, incarnation, service, time.clone()).unwrap()
    }

    /// Starts another incarnation of the server, which has no sessions.
    pub fn restart(&mut self) {
        self.server = Self::start(&self.nic, &self.time, ResponderConfig::default(), 2);
    }

    pub fn now(&self) -> Nanos {
        self.time.now()
    }

    pub fn client<P: Path>(&mut self) -> Caller<P> {
        self.client_with(CallerConfig::default())
    }

    pub fn client_with<P: Path>(&mut self, config: CallerConfig) -> Caller<P> {
        let mut client = Caller::new(self.nic.clone(), config).unwrap();
        self.connect(&mut client).unwrap();
        client
    }

    /// Connects, or resumes the client's session.
    pub fn connect(&mut self, client: &mut CallerState) -> Result<ConnectionId, Refusal> {
        let hello = client.hello().unwrap();
        let now = self.now();
        let (id, welcome) = self.server.accept(&hello, now)?;
        client.welcome(welcome, now).unwrap();
        Ok(id)
    }

    /// Makes one iteration of both; advances the time by 100 ns.
    pub fn step<P: Path>(&mut self, client: &mut Caller<P>) -> Progress {
        self.time.0.advance(Duration::from_nanos(100));
        let now = self.now();
        let server = self.server.progress(now);
        let next = server.merge(client.progress(now));
        if let Progress::Idle { .. } = next {
            // The device's service thread may need the processor; virtual time does not wait for it.
            std::thread::yield_now();
        }
        next
    }

    /// Makes iterations of the server alone until it has executed `executed` calls. The first request of a connection
    /// may have to wait for the device's service thread.
    pub fn serve(&mut self, executed: u64) {
        let start = Instant::now();
        while self.server.handler().executed < executed {
            assert!(start.elapsed() < LOST, "the server sees no request");
            let now = self.now();
            self.server.progress(now);
            std::thread::yield_now();
        }
        assert_eq!(self.server.handler().executed, executed);
    }

    /// Makes steps until a call completes.
    pub fn finish<P: Path>(&mut self, client: &mut Caller<P>) -> (CallId, Result<Vec<u8>, CallError>) {
        let (start, mut steps) = (Instant::now(), 0);
        loop {
            self.step(client);
            if let Some(completion) = client.next_completion() {
                return (completion.call, completion.result.map(<[u8]>::to_vec));
            }
            steps += 1;
            if steps > 200_000 {
                // Sufficient if the device's service thread could run in the meantime.
                assert!(start.elapsed() < LOST, "no call ended; client {:?}", client.counters());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Makes one call.
    pub fn call<P: Path>(
        &mut self,
        client: &mut Caller<P>,
        method: u16,
        payload: &[u8],
    ) -> Result<Vec<u8>, CallError> {
        let id = client.submit(method, payload, CallContext::default(), self.now())?;
        let (ended, result) = self.finish(client);
        assert_eq!(ended, id);
        result
    }
}

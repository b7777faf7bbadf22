//! Many clients of one server under any wait strategy (RR-Compound, sections IV-E and V). A process replies; one
//! thread of this process runs all clients, each with a connection of its own.

use super::load::Unary;
use super::transport::{Connected, Transport};
use super::{Preset, failed, waiting};
use crate::measure::{LatencyRecorder, keep_thread_on, pin_thread, resident_bytes};
use crate::peer::{self, BothEnds, Meter, PairPlan, Peer, PeerError, PeerPlace, PeerTask};
use crate::streams::WaitMode;
use bytes::Bytes;
use farcall::select::{SelectedNic, Selection};
use farcall::stream::{StreamConfig, StreamOptions};
use farcall_echo::v1::Message;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct::EchoDirectClient;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio_stream::wrappers::ReceiverStream;

/// Calls that each client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calls {
    /// Unary calls by tonic's generated code, one at a time.
    Unary,
    /// Unary calls without tonic's codec at both ends, one at a time. Not over TCP.
    Direct,
    /// One bidirectional call with several outstanding messages.
    Stream {
        /// Number of outstanding messages.
        in_flight: usize,
    },
}

/// Configuration of clients and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPoolTask {
    /// Wait strategy of the server; [`WaitMode::Tcp`] is tonic over TCP.
    pub mode: WaitMode,
    /// Number of clients.
    pub clients: usize,
    /// Calls of each client.
    pub calls: Calls,
    /// Length of a request in bytes.
    pub request_bytes: usize,
    /// Length of a response in bytes; at most that of a request.
    pub answer_bytes: usize,
    /// Pause of a client after a response.
    pub interval: Duration,
    /// Number of poller threads of [`WaitMode::Bpev`].
    pub pollers: usize,
    /// Time that its workers poll; if `None`, it is measured.
    pub bp_timeout_us: Option<u32>,
    /// Length of the receive rings in bytes, which then do not grow; the default if `None`.
    pub ring_bytes: Option<usize>,
}

impl ClientPoolTask {
    /// Returns a task with one client without a pause, and a server with this wait strategy and one poller.
    pub fn of(mode: WaitMode, calls: Calls, request_bytes: usize, answer_bytes: usize) -> Self {
        Self {
            mode,
            clients: 1,
            calls,
            request_bytes,
            answer_bytes,
            interval: Duration::ZERO,
            pollers: 1,
            bp_timeout_us: None,
            ring_bytes: None,
        }
    }

    fn preset(&self) -> Preset {
        if self.mode == WaitMode::Tcp { Preset::Tcp } else { Preset::Waits(self.mode) }
    }

    fn streams(&self) -> StreamOptions {
        let options = StreamOptions::default();
        match self.ring_bytes {
            Some(ring_bytes) => options.config(StreamConfig::default().fixed_ring(ring_bytes)),
            None => options,
        }
    }
}

impl fmt::Display for ClientPoolTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, clients, request_bytes, answer_bytes, .. } = self;
        write!(f, "gRPC, {mode}, {clients} clients, {request_bytes} B and {answer_bytes} B")
    }
}

/// Task of the serving process.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientPoolServer {
    task: ClientPoolTask,
    selection: Selection,
    /// Cores shared by pollers and workers.
    cores: Vec<usize>,
}

impl PeerTask for ClientPoolServer {
    const KIND: &'static str = "grpc-client-pool";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        keep_thread_on(&self.cores)?;
        // BP has one thread per connection; the other strategies have one worker.
        let mut builder = match self.task.mode {
            WaitMode::Bp => tokio::runtime::Builder::new_multi_thread(),
            _ => tokio::runtime::Builder::new_current_thread(),
        };
        let runtime =
            builder.worker_threads(self.task.clients.max(1)).enable_all().build().map_err(failed)?;
        let ClientPoolTask { mode, pollers, bp_timeout_us, .. } = self.task;
        let streams = waiting::serving(mode, pollers, bp_timeout_us, self.task.streams())?;
        runtime.block_on(self.task.preset().serve(&self.selection, streams, true, &place))
    }
}

/// Results of a measurement.
#[derive(Debug, Clone)]
pub struct ClientPool {
    /// Time from a request to its response.
    pub latencies: LatencyRecorder,
    /// Responses a second of all clients.
    pub per_second: f64,
    /// Processor time of all threads of the server, and of the clients.
    pub cores: BothEnds,
    /// Memory of the server's process per client in bytes, resident and shared.
    pub memory_bytes: f64,
}

/// State shared by the clients.
struct Run {
    task: ClientPoolTask,
    is_recorded: Cell<bool>,
    is_over: Cell<bool>,
    request: Bytes,
}

impl Run {
    fn message(&self) -> Message {
        let is_shorter = self.task.answer_bytes < self.task.request_bytes;
        let times = if is_shorter { self.task.answer_bytes as u32 } else { 0 };
        Message { payload: self.request.clone(), times }
    }

    fn check(&self, answer: &Message) -> Result<(), PeerError> {
        if answer.payload[..] == self.request[..self.task.answer_bytes] {
            return Ok(());
        }
        Err(PeerError::Part("an answer has other bytes than its request".to_owned()))
    }

    /// Waits unless the measurement has ended. tokio's timers have a resolution of milliseconds, so the clients' core
    /// polls the clock.
    async fn pause(&self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time && !self.is_over.get() {
            tokio::task::yield_now().await;
        }
    }

    /// Delays the start of a client with pauses, so that the clients do not all start at the same time.
    async fn stagger(&self, number: usize) {
        self.pause(self.task.interval.mul_f64(number as f64 / self.task.clients as f64)).await;
    }
}

/// Measures many clients. Pins the calling thread.
///
/// # Errors
/// Returns an error if the other end cannot be started, if a call fails, or if a response is wrong.
pub fn client_pool(
    task: ClientPoolTask,
    chosen: &SelectedNic,
    plan: &PairPlan,
) -> Result<ClientPool, PeerError> {
    pin_thread(plan.client_core)?;
    let cores = vec![plan.server_core];
    let server = ClientPoolServer { task, selection: chosen.selection.clone(), cores };
    let server = plan.launcher.start(&server, plan.server_core, &[])?;
    let address: SocketAddr = peer::receive(server.control())?;
    // The bytes differ from their neighbours, so that a truncated or shifted response is detected.
    let request: Vec<u8> = (0..task.request_bytes).map(|at| (at % 251) as u8).collect();
    let run = Rc::new(Run {
        task,
        is_recorded: Cell::new(false),
        is_over: Cell::new(false),
        request: request.into(),
    });
    super::runtime()?.block_on(LocalSet::new().run_until(async {
        let mut clients = Vec::new();
        let streams = waiting::calling(task.mode, task.bp_timeout_us, task.streams());
        for number in 0..task.clients {
            clients.push(match task.preset().connect(&chosen.nic, address, streams.clone()).await? {
                Connected::Http2(channel) => spawn(&run, channel, number),
                Connected::Native(channel) if task.calls == Calls::Direct => {
                    spawn_local(call(Rc::clone(&run), EchoDirectClient::new(channel), number))
                }
                Connected::Native(channel) => spawn(&run, channel, number),
            });
        }
        tokio::time::sleep(plan.warm_up).await;
        run.is_recorded.set(true);
        let (meter, start) = (Meter::start(&server)?, Instant::now());
        tokio::time::sleep(plan.duration).await;
        run.is_recorded.set(false);
        let (elapsed, cores) = (start.elapsed(), meter.stop()?);
        let memory_bytes = memory_of(&server)? / task.clients as f64;
        run.is_over.set(true);
        let mut latencies = LatencyRecorder::default();
        for client in clients {
            latencies.add(&client.await.map_err(failed)??);
        }
        let per_second = latencies.count() as f64 / elapsed.as_secs_f64();
        Ok(ClientPool { latencies, per_second, cores, memory_bytes })
    }))
}

fn memory_of(server: &Peer) -> Result<f64, PeerError> {
    let pid = server.pid().ok_or(PeerError::Ended)?;
    Ok(resident_bytes(pid)? as f64)
}

/// Starts a client with tonic's generated code.
fn spawn(
    run: &Rc<Run>,
    channel: impl Transport,
    number: usize,
) -> JoinHandle<Result<LatencyRecorder, PeerError>> {
    let (run, client) = (Rc::clone(run), EchoClient::new(channel));
    match run.task.calls {
        Calls::Stream { in_flight } => spawn_local(converse(run, client, in_flight.max(1), number)),
        Calls::Unary | Calls::Direct => spawn_local(call(run, client, number)),
    }
}

/// Runs the calls of one client, each after the response to the previous one and a pause.
async fn call(run: Rc<Run>, mut client: impl Unary, number: usize) -> Result<LatencyRecorder, PeerError> {
    run.stagger(number).await;
    let mut latencies = LatencyRecorder::default();
    while !run.is_over.get() {
        let start = Instant::now();
        let answer = client.unary(run.message()).await.map_err(failed)?;
        if run.is_recorded.get() {
            latencies.record_ns(start.elapsed().as_nanos() as u64);
        }
        run.check(&answer)?;
        run.pause(run.task.interval).await;
    }
    Ok(latencies)
}

/// Runs one call with up to `in_flight` outstanding messages. Responses arrive in the order of the messages.
async fn converse(
    run: Rc<Run>,
    mut client: EchoClient<impl Transport>,
    in_flight: usize,
    number: usize,
) -> Result<LatencyRecorder, PeerError> {
    run.stagger(number).await;
    let (send, sent) = mpsc::channel(in_flight);
    let mut starts = std::collections::VecDeque::with_capacity(in_flight);
    for _ in 0..in_flight {
        starts.push_back(Instant::now());
        send.send(run.message()).await.map_err(failed)?;
    }
    let mut answers = client.converse(ReceiverStream::new(sent)).await.map_err(failed)?.into_inner();
    let mut latencies = LatencyRecorder::default();
    while let Some(start) = starts.pop_front() {
        let answer = answers.message().await.map_err(failed)?;
        let answer = answer.ok_or_else(|| failed(format!("the stream of client {number} ended")))?;
        if run.is_recorded.get() {
            latencies.record_ns(start.elapsed().as_nanos() as u64);
        }
        run.check(&answer)?;
        run.pause(run.task.interval).await;
        if !run.is_over.get() {
            starts.push_back(Instant::now());
            send.send(run.message()).await.map_err(failed)?;
        }
    }
    Ok(latencies)
}

//! Calls to an echo service in another process, under one preset.

use super::ExperimentError;
use super::line;
use super::server::{ServerError, ServerProcess};
use super::stage::Stage;
use crate::load::{Traffic, client_options, in_batches, settle};
use crate::measure::{LatencySummary, cpu_time, ping_pong};
use crate::peer::PeerLauncher;
use farcall_link::{BatchSizing, MemoryPolicy, ResponsePath as ResponseAxis};
use farcall_providers::Selection;
use farcall_rpc::tune::{Decision, LinkProfile};
use farcall_rpc::{
    AnyCaller, BySend, Client, ClientOf, ClientOptions, ConnectError, DatagramReply, Fetch, FetchThenReply,
    NoticeThenFetch, OverUc, OverUd, Path, ResponsePath, SendReply, ServerReply, StaticClient,
};
use farcall_verbs::Provider;
use std::fmt;
use std::time::Duration;

/// Bytes of a request to [`Callee::Head`] and [`Callee::Block`].
pub(crate) const REQUEST_LEN_BYTES: usize = 64;
/// Bytes of a reply of [`Callee::Head`].
pub(crate) const REPLY_LEN_BYTES: usize = 8;
/// A server that does not answer for so long is dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// What the echo service's blocks consist of.
const BLOCK_BYTE: u8 = 0x5A;
/// Header and tail of a slot, and more, so that slots stay odd in units of 128 bytes (see `Geometry::default`).
const SLOT_OVERHEAD_BYTES: u32 = 128;
/// Results up to this long get slots that hold them, where the usual ones do not.
const SLOT_PAYLOAD_MAX_BYTES: u32 = 16 << 10;

const WRONG_ECHO: &str = "the echo came back with other bytes";

/// A method of the echo service (`farcall rpc serve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callee {
    /// 64 bytes there, the first eight of them back.
    Head,
    /// Computes for so many microseconds, and answers with nothing.
    Work {
        /// How long.
        us: u32,
    },
    /// 64 bytes there, so many back.
    Block {
        /// How many.
        len_bytes: u32,
    },
    /// What somebody's calls are like.
    Job(Job),
}

/// A call of a certain shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Bytes there: eight at least.
    pub request_bytes: u32,
    /// Bytes back.
    pub response_bytes: u32,
    /// How long the server computes, in microseconds.
    pub process_us: u32,
}

/// What to call, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallTask {
    /// A name of the preset table.
    pub(crate) preset: &'static str,
    pub(crate) callee: Callee,
    /// Calls under way on each connection.
    pub(crate) window: u32,
    /// Connections that call, all run by one thread.
    pub(crate) connections: u32,
    /// Connections beside them on which nobody calls.
    pub(crate) silent_connections: u32,
    /// Whether calls travel in batches, and in which.
    pub(crate) batch: Option<BatchSizing>,
    /// Inlining and signalling; the preset's own if `None`.
    pub(crate) memory: Option<MemoryPolicy>,
}

/// One run of calls.
#[derive(Debug, Clone)]
pub(crate) struct CallSample {
    /// Round trips.
    pub(crate) figures: line::Sample,
    /// Latencies, where single calls were timed.
    pub(crate) latency: Option<LatencySummary>,
    /// Until the last of all calls that were under way at a time had its result.
    pub(crate) round_mean_us: f64,
    pub(crate) verbs_per_call: f64,
    pub(crate) empty_reads_per_call: f64,
    pub(crate) server_cpu_us_per_call: f64,
    pub(crate) client_cpu_us_per_call: f64,
    /// What was chosen, if that was left to the library.
    pub(crate) decision: Option<Decision>,
    /// R and F at the end, of each connection that fetches.
    pub(crate) tunings: Vec<(u32, u32)>,
}

impl CallTask {
    /// Small calls, one at a time on each connection.
    pub(crate) const fn small(preset: &'static str) -> Self {
        Self {
            preset,
            callee: Callee::Head,
            window: 1,
            connections: 1,
            silent_connections: 0,
            batch: None,
            memory: None,
        }
    }

    /// The request and the response slot it needs, where the usual one is too small.
    fn slots_bytes(&self) -> [Option<u32>; 2] {
        let len_bytes = match self.callee {
            Callee::Block { len_bytes } => [0, len_bytes],
            Callee::Job(job) => [job.request_bytes, job.response_bytes],
            Callee::Head | Callee::Work { .. } => [0, 0],
        };
        len_bytes.map(|len_bytes| {
            let is_longer = (4096 + 1..=SLOT_PAYLOAD_MAX_BYTES).contains(&len_bytes);
            is_longer.then(|| (len_bytes + SLOT_OVERHEAD_BYTES).next_multiple_of(SLOT_OVERHEAD_BYTES))
        })
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_bytes, response_bytes, process_us } = self;
        write!(f, "{request_bytes} B there, {process_us} µs, {response_bytes} B back")
    }
}

impl fmt::Display for CallTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.preset, self.workload())
    }
}

impl CallTask {
    /// All but the preset.
    pub(crate) fn workload(&self) -> String {
        let mut text = match self.callee {
            Callee::Head => "echo".to_owned(),
            Callee::Work { us } => format!("calls of {us} µs"),
            Callee::Block { len_bytes } => format!("replies of {len_bytes} B"),
            Callee::Job(job) => job.to_string(),
        };
        text += &format!(", window {}", self.window);
        text.extend(self.batch.map(|batch| format!(", {batch}")));
        if self.connections > 1 {
            text += &format!(", {} connections", self.connections);
        }
        if self.silent_connections > 0 {
            text += &format!(" and {} silent", self.silent_connections);
        }
        text
    }
}

/// Starts an echo service on the stage's server core.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start_echo(stage: &Stage, nic: &Selection) -> Result<ServerProcess, ServerError> {
    let mut args = ["--json", "rpc", "serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    args.extend(nic.args());
    ServerProcess::start(&PeerLauncher::with_args(args), stage.server_core)
}

/// What runs meet.
pub(crate) struct Ground<'a> {
    pub(crate) stage: &'a Stage,
    /// The RNIC of both ends.
    pub(crate) nic: &'a Selection,
    /// What connections begin with instead of a probe.
    pub(crate) profile: Option<&'a LinkProfile>,
    pub(crate) server: &'a ServerProcess,
}

/// Connects, calls for the stage's duration, disconnects.
///
/// # Errors
/// When the preset is measured by nothing, the service cannot be reached, or a call fails.
pub(crate) fn measure(task: &CallTask, ground: &Ground<'_>) -> Result<CallSample, ExperimentError> {
    let mut options = options_of(task, ground);
    let (preset, decision) = settle(task.preset, &mut options, ground.nic, ground.address()?)?;
    let sample = match task.batch {
        Some(batch) => batched_sample(task, ground, preset, options, batch),
        None => {
            let sample = sample_of(preset)
                .ok_or_else(|| format!("{preset} is measured by nothing; this is a defect"))?;
            sample(task, ground, options)
        }
    };
    Ok(CallSample { decision, ..sample? })
}

impl Ground<'_> {
    fn address(&self) -> Result<&str, ExperimentError> {
        let address = self.server.ready().rpc.as_deref();
        Ok(address.ok_or("the server process did not say where RPC clients connect")?)
    }
}

type TakeSample = fn(&CallTask, &Ground<'_>, ClientOptions) -> Result<CallSample, ExperimentError>;

/// What measures a preset: its paths are fixed when the program is compiled.
fn sample_of(preset: &str) -> Option<TakeSample> {
    Some(match preset {
        "server-reply" => sample::<ServerReply>,
        "uc-rpc" => sample::<OverUc<ServerReply>>,
        "herd" => sample::<OverUc<DatagramReply>>,
        "ud-rpc" => sample::<OverUd<DatagramReply>>,
        "fetch" => sample::<Fetch>,
        "rf-rpc" => sample::<FetchThenReply>,
        "write-send" => sample::<SendReply>,
        "send-write" => sample::<BySend<ServerReply>>,
        "send-send" => sample::<BySend<SendReply>>,
        "rdma-memcached" => sample::<BySend<NoticeThenFetch>>,
        _ => return None,
    })
}

fn sample<P: Path>(
    task: &CallTask,
    ground: &Ground<'_>,
    options: ClientOptions,
) -> Result<CallSample, ExperimentError> {
    let connect = |provider: &dyn Provider, address: &str, options| {
        StaticClient::<P>::connect(provider, address, options)
    };
    sample_by(task, ground, options, P::Response::FETCHES, connect)
}

/// Calls that travel in batches: a dynamic call each, among the copies into and out of a batch.
fn batched_sample(
    task: &CallTask,
    ground: &Ground<'_>,
    preset: &str,
    options: ClientOptions,
    batch: BatchSizing,
) -> Result<CallSample, ExperimentError> {
    let options = in_batches(options, preset, batch).ok_or_else(|| format!("no preset {preset}"))?;
    let response = options.config.plan.response;
    let fetches = matches!(response, ResponseAxis::Fetch | ResponseAxis::FetchThenReply);
    let connect =
        |provider: &dyn Provider, address: &str, options| Client::connect(provider, address, options);
    sample_by(task, ground, options, fetches, connect)
}

/// The options of a task's connections.
fn options_of(task: &CallTask, ground: &Ground<'_>) -> ClientOptions {
    let mut options = client_options(task.window, PATIENCE, ground.profile);
    if let Some(memory) = task.memory {
        options.config.plan.memory = memory;
    }
    let geometry = &mut options.config.plan.geometry;
    let [request_bytes, response_bytes] = task.slots_bytes();
    geometry.request_slot_bytes = request_bytes.unwrap_or(geometry.request_slot_bytes);
    geometry.response_slot_bytes = response_bytes.unwrap_or(geometry.response_slot_bytes);
    options
}

fn sample_by<C: AnyCaller + ?Sized>(
    task: &CallTask,
    ground: &Ground<'_>,
    options: ClientOptions,
    fetches: bool,
    connect: impl Fn(&dyn Provider, &str, ClientOptions) -> Result<ClientOf<C>, ConnectError>,
) -> Result<CallSample, ExperimentError> {
    let (stage, server) = (ground.stage, ground.server);
    let address = ground.address()?;
    let connect = |_| ground.nic.connect(|provider| connect(provider, address, options.clone()), |_| false);
    let _silent = (0..task.silent_connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut clients = (0..task.connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let traffic_of = |clients: &[ClientOf<C>]| Traffic::of_all(clients.iter().map(ClientOf::counters));
    let traffic_before = traffic_of(&clients);
    let cpu_of_both = || Ok::<_, ExperimentError>([cpu_time(server.pid())?, cpu_time(std::process::id())?]);
    let cpu_before = cpu_of_both()?;
    let at_once = task.window * task.connections;
    let mut calls = 0u64;
    let (mut request, mut reply) = (Request::new(task.callee), Vec::with_capacity(REPLY_LEN_BYTES));
    let round_trips = ping_pong(stage.warm_up, stage.duration, |number| {
        calls += u64::from(at_once);
        match &mut clients[..] {
            [client] if task.window == 1 => call_once(client, &mut request, number, &mut reply),
            clients => call_windows(clients, task.window, &mut request, number),
        }
    })?;
    let [server_cpu_us_per_call, client_cpu_us_per_call] = {
        let [server, client] = cpu_of_both()?;
        [server.saturating_sub(cpu_before[0]), client.saturating_sub(cpu_before[1])]
            .map(|cpu| cpu.as_secs_f64() * 1e6 / calls as f64)
    };
    let traffic = traffic_of(&clients).since(traffic_before);
    // With several calls under way only the time of all of them is known.
    let latency = (at_once == 1).then_some(round_trips.latency);
    let per_second = round_trips.per_second * f64::from(at_once);
    let figures = line::Sample {
        per_second,
        bytes_per_second: per_second * task.callee.reply_len_bytes() as f64,
        ..line::Sample::of_latency(&round_trips.latency, if at_once == 1 { 1.0 } else { f64::NAN })
    };
    let fetching = clients.iter().filter(|_| fetches);
    Ok(CallSample {
        figures,
        latency,
        round_mean_us: round_trips.latency.mean_ns / 1e3,
        verbs_per_call: traffic.verbs as f64 / calls as f64,
        empty_reads_per_call: traffic.empty_reads as f64 / calls as f64,
        server_cpu_us_per_call,
        client_cpu_us_per_call,
        decision: None,
        tunings: fetching.map(ClientOf::tuning).collect(),
    })
}

#[inline]
fn call_once<C: AnyCaller + ?Sized>(
    client: &mut ClientOf<C>,
    request: &mut Request,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), ExperimentError> {
    let callee = request.callee;
    reply.clear();
    client.call(callee.method(), request.numbered(number), reply)?;
    if callee.is_right(number, reply) { Ok(()) } else { Err(WRONG_ECHO.into()) }
}

/// Begins a window of calls on each connection, and waits for all of them.
#[inline]
fn call_windows<C: AnyCaller + ?Sized>(
    clients: &mut [ClientOf<C>],
    window: u32,
    request: &mut Request,
    number: u64,
) -> Result<(), ExperimentError> {
    let (callee, bytes) = (request.callee, request.numbered(number));
    for client in &mut *clients {
        for _ in 0..window {
            client.submit(callee.method(), bytes)?;
        }
        client.flush();
    }
    let mut left = window as usize * clients.len();
    while left > 0 {
        for client in &mut *clients {
            client.progress();
            while let Some(completion) = client.next_completion() {
                if !callee.is_right(number, completion.result?) {
                    return Err(WRONG_ECHO.into());
                }
                left -= 1;
            }
        }
    }
    Ok(())
}

/// A request, made once and numbered anew for each call.
struct Request {
    callee: Callee,
    bytes: Vec<u8>,
}

impl Request {
    fn new(callee: Callee) -> Self {
        let (words, len_bytes) = match callee {
            Callee::Head => ([0, 0], REQUEST_LEN_BYTES),
            Callee::Work { us } => ([us, 0], size_of::<u32>()),
            Callee::Block { len_bytes } => ([len_bytes, 0], REQUEST_LEN_BYTES),
            Callee::Job(job) => ([job.response_bytes, job.process_us], job.request_bytes as usize),
        };
        let mut bytes = words.map(u32::to_le_bytes).concat();
        bytes.resize(len_bytes, 0);
        Self { callee, bytes }
    }

    /// The bytes of the call with this number.
    #[inline]
    fn numbered(&mut self, number: u64) -> &[u8] {
        if self.callee == Callee::Head {
            self.bytes[..REPLY_LEN_BYTES].copy_from_slice(&number.to_le_bytes());
        }
        &self.bytes
    }
}

impl Callee {
    /// As `farcall rpc serve` numbers them.
    const fn method(self) -> u16 {
        match self {
            Self::Head => 2,
            Self::Work { .. } => 3,
            Self::Block { .. } => 4,
            Self::Job(_) => 5,
        }
    }

    const fn reply_len_bytes(self) -> usize {
        match self {
            Self::Head => REPLY_LEN_BYTES,
            Self::Work { .. } => 0,
            Self::Block { len_bytes } => len_bytes as usize,
            Self::Job(job) => job.response_bytes as usize,
        }
    }

    #[inline]
    fn is_right(self, number: u64, reply: &[u8]) -> bool {
        match self {
            Self::Head => *reply == number.to_le_bytes(),
            Self::Work { .. } => reply.is_empty(),
            Self::Block { .. } | Self::Job(_) => {
                let is_ours = |byte: Option<&u8>| byte.is_none_or(|byte| *byte == BLOCK_BYTE);
                reply.len() == self.reply_len_bytes() && is_ours(reply.first()) && is_ours(reply.last())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_measured() {
        for preset in farcall_link::PRESETS {
            assert!(sample_of(preset.name).is_some(), "{} is measured by nothing", preset.name);
        }
    }

    #[test]
    fn long_results_get_slots_that_hold_them() {
        let slot = |len_bytes| {
            let [request, response] =
                CallTask { callee: Callee::Block { len_bytes }, ..CallTask::small("fetch") }.slots_bytes();
            assert_eq!(request, None);
            response
        };
        assert_eq!((slot(64), slot(4096), slot(16_384), slot(1 << 20)), (None, None, Some(16_512), None));
        assert!(slot(5000).unwrap().is_multiple_of(64));
        let job = Job { request_bytes: 5_000, response_bytes: 8, process_us: 0 };
        let task = CallTask { callee: Callee::Job(job), ..CallTask::small("fetch") };
        assert_eq!(task.slots_bytes(), [slot(5_000), None]);
    }
}

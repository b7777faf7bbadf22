//! Calls to an echo service in another process, under one preset.

use super::ExperimentError;
use super::line;
use super::server::{Served, ServerError, ServerProcess, Service};
use super::stage::Stage;
use crate::load::{Traffic, client_options, in_batches};
use crate::measure::{LatencySummary, ping_pong};
use farcall_link::{BatchSizing, MemoryPolicy, ResponsePath as ResponseAxis};
use farcall_providers::Selection;
use farcall_rpc::tune::LinkProfile;
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

    /// The response slot it needs, if the usual one is too small.
    fn response_slot_bytes(&self) -> Option<u32> {
        match self.callee {
            Callee::Block { len_bytes } if (4096 + 1..=SLOT_PAYLOAD_MAX_BYTES).contains(&len_bytes) => {
                Some((len_bytes + SLOT_OVERHEAD_BYTES).next_multiple_of(SLOT_OVERHEAD_BYTES))
            }
            _ => None,
        }
    }
}

impl fmt::Display for CallTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.preset)?;
        match self.callee {
            Callee::Head => f.write_str("echo")?,
            Callee::Work { us } => write!(f, "calls of {us} µs")?,
            Callee::Block { len_bytes } => write!(f, "replies of {len_bytes} B")?,
        }
        write!(f, ", window {}", self.window)?;
        if let Some(batch) = self.batch {
            write!(f, ", {batch}")?;
        }
        if self.connections > 1 {
            write!(f, ", {} connections", self.connections)?;
        }
        if self.silent_connections > 0 {
            write!(f, " and {} silent", self.silent_connections)?;
        }
        Ok(())
    }
}

/// Starts an echo service where the stage has its servers.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start_echo(stage: &Stage, nic: &Selection) -> Result<ServerProcess, ServerError> {
    ServerProcess::serve(stage, &Service { nic: nic.clone(), what: Served::Echo { threads: 1 } })
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
    if let Some(batch) = task.batch {
        return batched_sample(task, ground, batch);
    }
    let sample = sample_of(task.preset)
        .ok_or_else(|| format!("{} is measured by nothing; this is a defect", task.preset))?;
    sample(task, ground)
}

type TakeSample = fn(&CallTask, &Ground<'_>) -> Result<CallSample, ExperimentError>;

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

fn sample<P: Path>(task: &CallTask, ground: &Ground<'_>) -> Result<CallSample, ExperimentError> {
    let connect = |provider: &dyn Provider, address: &str, options| {
        StaticClient::<P>::connect(provider, address, options)
    };
    sample_by(task, ground, options_of(task, ground), P::Response::FETCHES, connect)
}

/// Calls that travel in batches: a dynamic call each, among the copies into and out of a batch.
fn batched_sample(
    task: &CallTask,
    ground: &Ground<'_>,
    batch: BatchSizing,
) -> Result<CallSample, ExperimentError> {
    let options = in_batches(options_of(task, ground), task.preset, batch)
        .ok_or_else(|| format!("no preset {}", task.preset))?;
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
    if let Some(bytes) = task.response_slot_bytes() {
        options.config.plan.geometry.response_slot_bytes = bytes;
    }
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
    let address =
        server.ready().rpc.clone().ok_or("the server process did not say where RPC clients connect")?;
    let connect = |_| ground.nic.connect(|provider| connect(provider, &address, options.clone()), |_| false);
    let _silent = (0..task.silent_connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut clients = (0..task.connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let traffic_of = |clients: &[ClientOf<C>]| Traffic::of_all(clients.iter().map(ClientOf::counters));
    let traffic_before = traffic_of(&clients);
    let cpu_before = server.cpu_time()?;
    let at_once = task.window * task.connections;
    let mut calls = 0u64;
    let mut reply = Vec::with_capacity(REPLY_LEN_BYTES);
    let round_trips = ping_pong(stage.warm_up, stage.duration, |number| {
        calls += u64::from(at_once);
        match &mut clients[..] {
            [client] if task.window == 1 => call_once(client, task.callee, number, &mut reply),
            clients => call_windows(clients, task, number),
        }
    })?;
    let server_cpu = server.cpu_time()?.saturating_sub(cpu_before);
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
        server_cpu_us_per_call: server_cpu.as_secs_f64() * 1e6 / calls as f64,
        tunings: fetching.map(ClientOf::tuning).collect(),
    })
}

#[inline]
fn call_once<C: AnyCaller + ?Sized>(
    client: &mut ClientOf<C>,
    callee: Callee,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), ExperimentError> {
    let request = Request::new(callee, number);
    reply.clear();
    client.call(callee.method(), request.bytes(), reply)?;
    if callee.is_right(number, reply) { Ok(()) } else { Err(WRONG_ECHO.into()) }
}

/// Begins a window of calls on each connection, and waits for all of them.
#[inline]
fn call_windows<C: AnyCaller + ?Sized>(
    clients: &mut [ClientOf<C>],
    task: &CallTask,
    number: u64,
) -> Result<(), ExperimentError> {
    let CallTask { callee, window, .. } = *task;
    let request = Request::new(callee, number);
    for client in &mut *clients {
        for _ in 0..window {
            client.submit(callee.method(), request.bytes())?;
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

/// A request: its bytes, of which the first few are used.
struct Request {
    bytes: [u8; REQUEST_LEN_BYTES],
    len_bytes: usize,
}

impl Request {
    fn new(callee: Callee, number: u64) -> Self {
        let mut bytes = [number as u8; REQUEST_LEN_BYTES];
        let len_bytes = match callee {
            Callee::Head => {
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                REQUEST_LEN_BYTES
            }
            Callee::Work { us } => {
                bytes[..4].copy_from_slice(&us.to_le_bytes());
                4
            }
            Callee::Block { len_bytes } => {
                bytes[..4].copy_from_slice(&len_bytes.to_le_bytes());
                REQUEST_LEN_BYTES
            }
        };
        Self { bytes, len_bytes }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len_bytes]
    }
}

impl Callee {
    /// As `farcall rpc serve` numbers them.
    const fn method(self) -> u16 {
        match self {
            Self::Head => 2,
            Self::Work { .. } => 3,
            Self::Block { .. } => 4,
        }
    }

    const fn reply_len_bytes(self) -> usize {
        match self {
            Self::Head => REPLY_LEN_BYTES,
            Self::Work { .. } => 0,
            Self::Block { len_bytes } => len_bytes as usize,
        }
    }

    #[inline]
    fn is_right(self, number: u64, reply: &[u8]) -> bool {
        match self {
            Self::Head => *reply == number.to_le_bytes(),
            Self::Work { .. } => reply.is_empty(),
            Self::Block { len_bytes } => {
                let is_ours = |byte: Option<&u8>| byte == Some(&BLOCK_BYTE);
                reply.len() == len_bytes as usize && is_ours(reply.first()) && is_ours(reply.last())
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
            CallTask { callee: Callee::Block { len_bytes }, ..CallTask::small("fetch") }.response_slot_bytes()
        };
        assert_eq!((slot(64), slot(4096), slot(16_384), slot(1 << 20)), (None, None, Some(16_512), None));
        assert!(slot(5000).unwrap().is_multiple_of(64));
    }
}

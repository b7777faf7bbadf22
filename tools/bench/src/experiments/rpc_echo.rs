//! The round trip of a small call beside what bounds it and what people use: 64 bytes there, 8 bytes back.

use super::ExperimentError;
use super::limits::find_ucx;
use super::line::{self, Rival};
use super::server::ServerProcess;
use super::stage::{Progress, Stage};
use crate::baseline::Baseline;
use crate::load::{Traffic, client_options, tuning_condition};
use crate::measure::{cpu_time, pin_thread, ping_pong};
use crate::peer::PeerLauncher;
use crate::report::{Column, Figure, Report, Table};
use crate::ucx::{Ucx, UcxTest};
use farcall_link::{BatchConfig, BatchSizing, Batching, Plan, ResponsePath as ResponseAxis};
use farcall_providers::Selection;
use farcall_rpc::tune::LinkProfile;
use farcall_rpc::{
    AnyCaller, BySend, Client, ClientOf, ClientOptions, ConnectError, Fetch, FetchThenReply, OverUc, Path,
    ResponsePath, SendReply, ServerReply, StaticClient,
};
use farcall_verbs::Provider;
use std::fmt;
use std::time::Duration;

/// Bytes of a request.
const REQUEST_LEN_BYTES: usize = 64;
/// The echo service's method that answers with the first eight bytes.
const METHOD_HEAD: u16 = 2;
/// Bytes of a reply.
const REPLY_LEN_BYTES: usize = 8;
/// A server that does not answer for so long is dead.
const PATIENCE: Duration = Duration::from_secs(5);

const WRONG_ECHO: &str = "the echo came back with other bytes";

/// What two columns of the table mean.
const VERBS_NOTE: &str = "Verbs: all WRITEs, READs and SENDs of both ends, for each call. Empty READs: those among them that found no result yet. \
                          Each is in-bound work of the server's RNIC; here the client's processor executes them, and what they cost \
                          the server is not measured.";

/// What to measure.
#[derive(Debug)]
pub struct RpcEchoPlan {
    /// Cores, durations, repetitions.
    pub stage: Stage,
    /// The RNIC of both ends.
    pub nic: Selection,
    /// What connections begin with instead of a probe.
    pub profile: Option<LinkProfile>,
    /// Names of the preset table.
    pub presets: Vec<&'static str>,
    /// Calls under way on each connection.
    pub windows: Vec<u32>,
    /// Connections, all run by one client thread.
    pub connections: u32,
    /// Ways of batching; each window is measured without, and with each that it can fill.
    pub batches: Vec<BatchSizing>,
    /// Whether UCX's active messages are measured, too.
    pub with_ucx: bool,
}

/// One run of calls, or of what stands beside them.
#[derive(Debug)]
struct Sample {
    /// Round trips.
    figures: line::Sample,
    verbs_per_call: f64,
    empty_reads_per_call: f64,
    server_cpu_us_per_call: f64,
    /// R and F at the end, of each connection that fetches.
    tunings: Vec<(u32, u32)>,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum What {
    Rival(Rival),
    Rpc { preset: &'static str, window: u32, batch: Option<BatchSizing> },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rival(rival @ Rival::Bare(_)) => rival.fmt(f),
            Self::Rival(rival @ Rival::Ucx(_)) => write!(f, "{rival}, there and back"),
            Self::Rpc { preset, window, batch: None } => write!(f, "{preset} echo, window {window}"),
            Self::Rpc { preset, window, batch: Some(batch) } => {
                write!(f, "{preset} echo, window {window}, {batch}")
            }
        }
    }
}

/// Measures echoes under each preset asked for beside bare ping-pongs and UCX's active messages, interleaved.
///
/// # Errors
/// When none of ours can be measured. A missing UCX is a note.
pub fn run(plan: &RpcEchoPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let RpcEchoPlan { stage, nic, .. } = plan;
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.push("provider", format!("{} (RC; uc-rpc: UC)", nic.wish));
    conditions.push("sizes", format!("{REQUEST_LEN_BYTES} B requests, {REPLY_LEN_BYTES} B replies"));
    let threads = format!("1 server thread, 1 client thread, {} connection(s)", plan.connections);
    conditions.push("threads", threads);
    let mut report = Report::new("Echo calls between two processes", conditions).over(nic.wish);
    report.notes.extend(stage.single_core_note());
    let ucx = find_ucx(plan.with_ucx, &mut report);
    let mut args = ["--json", "rpc", "serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    args.extend(nic.args());
    let server = ServerProcess::start(&PeerLauncher::with_args(args), stage.server_core)?;
    let mut lines: Vec<(What, Vec<Sample>)> =
        plan.whats(ucx.is_some()).into_iter().map(|what| (what, Vec::new())).collect();
    stage.interleave(
        &mut lines,
        &mut report,
        progress,
        |(what, _)| what.to_string(),
        |(what, samples), _, report| {
            samples.extend(what.measure(plan, &server, ucx.as_ref(), report)?);
            Ok::<(), ExperimentError>(())
        },
    )?;
    report.tables.push(table(&lines));
    report.notes.push(VERBS_NOTE.to_owned());
    let tunings =
        lines.iter().flat_map(|(_, samples)| samples).flat_map(|sample| sample.tunings.iter().copied());
    if let Some(condition) = tuning_condition(tunings, plan.profile.as_ref()) {
        report.conditions.push("fetching presets", condition);
    }
    if let Err(error) = server.stop(PATIENCE) {
        report.problems.push(error.to_string());
    }
    Ok(report)
}

impl RpcEchoPlan {
    fn whats(&self, with_ucx: bool) -> Vec<What> {
        let bare = |baseline| What::Rival(Rival::Bare(baseline));
        let mut whats = vec![bare(Baseline::SharedMemory)];
        for &window in &self.windows {
            let fills = |batch: &&BatchSizing| batch.least() <= window;
            for &preset in &self.presets {
                let batches = self.batches.iter().filter(fills).copied().map(Some);
                whats.extend([None].into_iter().chain(batches).map(|batch| What::Rpc {
                    preset,
                    window,
                    batch,
                }));
            }
        }
        if with_ucx {
            whats.push(What::Rival(Rival::Ucx(UcxTest::AmLatency)));
        }
        whats.extend([Baseline::TcpSpin, Baseline::TcpEpoll, Baseline::UnixEpoll].map(bare));
        whats
    }
}

impl What {
    fn measure(
        self,
        plan: &RpcEchoPlan,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let rival = match self {
            Self::Rpc { preset, window, batch: Some(batch) } => {
                return batched_sample(plan, server, window, preset, batch).map(Some);
            }
            Self::Rpc { preset, window, batch: None } => {
                let sample = sample_of(preset)
                    .ok_or_else(|| format!("{preset} is measured by nothing; this is a defect"))?;
                return sample(plan, server, window).map(Some);
            }
            Self::Rival(rival) => rival,
        };
        // UCX reports half of a round trip.
        let factor = if matches!(rival, Rival::Ucx(_)) { 2.0 } else { 1.0 };
        Ok(rival.measure(&plan.stage, ucx, report)?.map(|figures| Sample {
            figures: figures.stretched(factor),
            verbs_per_call: f64::NAN,
            empty_reads_per_call: f64::NAN,
            server_cpu_us_per_call: f64::NAN,
            tunings: Vec::new(),
        }))
    }
}

type TakeSample = fn(&RpcEchoPlan, &ServerProcess, u32) -> Result<Sample, ExperimentError>;

/// What measures a preset: its paths are fixed when the program is compiled.
fn sample_of(preset: &str) -> Option<TakeSample> {
    Some(match preset {
        "server-reply" => sample::<ServerReply>,
        "uc-rpc" => sample::<OverUc<ServerReply>>,
        "fetch" => sample::<Fetch>,
        "rf-rpc" => sample::<FetchThenReply>,
        "write-send" => sample::<SendReply>,
        "send-write" => sample::<BySend<ServerReply>>,
        "send-send" => sample::<BySend<SendReply>>,
        _ => return None,
    })
}

fn sample<P: Path>(
    plan: &RpcEchoPlan,
    server: &ServerProcess,
    window: u32,
) -> Result<Sample, ExperimentError> {
    let connect = |provider: &dyn Provider, address: &str, options| {
        StaticClient::<P>::connect(provider, address, options)
    };
    sample_by(plan, server, window, P::Response::FETCHES, connect)
}

/// Calls that travel in batches: a dynamic call each, among the copies into and out of a batch.
fn batched_sample(
    plan: &RpcEchoPlan,
    server: &ServerProcess,
    window: u32,
    preset: &str,
    batch: BatchSizing,
) -> Result<Sample, ExperimentError> {
    let paths = Plan::named(preset).ok_or_else(|| format!("no preset {preset}"))?;
    let fetches = matches!(paths.response, ResponseAxis::Fetch | ResponseAxis::FetchThenReply);
    let connect = |provider: &dyn Provider, address: &str, mut options: ClientOptions| {
        let batching = Batching::Calls(BatchConfig::default().size(batch));
        options.config.plan = Plan { geometry: options.config.plan.geometry, batching, ..paths };
        Client::connect(provider, address, options)
    };
    sample_by(plan, server, window, fetches, connect)
}

/// Connects, calls for the stage's duration with `window` calls under way on each connection, disconnects.
fn sample_by<C: AnyCaller + ?Sized>(
    plan: &RpcEchoPlan,
    server: &ServerProcess,
    window: u32,
    fetches: bool,
    connect: impl Fn(&dyn Provider, &str, ClientOptions) -> Result<ClientOf<C>, ConnectError>,
) -> Result<Sample, ExperimentError> {
    let address =
        server.ready().rpc.clone().ok_or("the server process did not say where RPC clients connect")?;
    let options = client_options(window, PATIENCE, plan.profile.as_ref());
    let connect = || plan.nic.connect(|provider| connect(provider, &address, options.clone()), |_| false);
    let mut clients = (0..plan.connections).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let traffic_of = |clients: &[ClientOf<C>]| Traffic::of_all(clients.iter().map(ClientOf::counters));
    let traffic_before = traffic_of(&clients);
    let cpu_before = cpu_time(server.pid())?;
    let at_once = window * plan.connections;
    let mut calls = 0u64;
    let mut reply = Vec::with_capacity(REPLY_LEN_BYTES);
    let round_trips = ping_pong(plan.stage.warm_up, plan.stage.duration, |number| {
        calls += u64::from(at_once);
        match &mut clients[..] {
            [client] if window == 1 => call_once(client, number, &mut reply),
            clients => call_windows(clients, number, window),
        }
    })?;
    let server_cpu = cpu_time(server.pid())?.saturating_sub(cpu_before);
    let traffic = traffic_of(&clients).since(traffic_before);
    let figures = line::Sample {
        per_second: round_trips.per_second * f64::from(at_once),
        // With several calls under way only the time of all of them is known.
        ..line::Sample::of_latency(&round_trips.latency, if at_once == 1 { 1.0 } else { f64::NAN })
    };
    let fetching = clients.iter().filter(|_| fetches);
    Ok(Sample {
        figures,
        verbs_per_call: traffic.verbs as f64 / calls as f64,
        empty_reads_per_call: traffic.empty_reads as f64 / calls as f64,
        server_cpu_us_per_call: server_cpu.as_secs_f64() * 1e6 / calls as f64,
        tunings: fetching.map(ClientOf::tuning).collect(),
    })
}

#[inline]
fn call_once<C: AnyCaller + ?Sized>(
    client: &mut ClientOf<C>,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), ExperimentError> {
    let request = request_of(number);
    reply.clear();
    client.call(METHOD_HEAD, &request, reply)?;
    if reply[..] == request[..REPLY_LEN_BYTES] { Ok(()) } else { Err(WRONG_ECHO.into()) }
}

/// Begins a window of calls on each connection, and waits for all of them.
#[inline]
fn call_windows<C: AnyCaller + ?Sized>(
    clients: &mut [ClientOf<C>],
    number: u64,
    window: u32,
) -> Result<(), ExperimentError> {
    let request = request_of(number);
    for client in &mut *clients {
        for _ in 0..window {
            client.submit(METHOD_HEAD, &request)?;
        }
        client.flush();
    }
    let mut left = window as usize * clients.len();
    while left > 0 {
        for client in &mut *clients {
            client.progress();
            while let Some(completion) = client.next_completion() {
                if completion.result? != &request[..REPLY_LEN_BYTES] {
                    return Err(WRONG_ECHO.into());
                }
                left -= 1;
            }
        }
    }
    Ok(())
}

fn request_of(number: u64) -> [u8; REQUEST_LEN_BYTES] {
    let mut request = [number as u8; REQUEST_LEN_BYTES];
    request[..REPLY_LEN_BYTES].copy_from_slice(&number.to_le_bytes());
    request
}

fn table(lines: &[(What, Vec<Sample>)]) -> Table {
    let figures: [Figure<Sample>; 7] = [
        (Column::with_decimals("p50_us", "p50 µs", 3), |sample| sample.figures.p50_us),
        (Column::with_decimals("p99_us", "p99 µs", 3).median_only(), |sample| sample.figures.p99_us),
        (Column::with_decimals("p999_us", "p99.9 µs", 3).median_only().wide(), |sample| {
            sample.figures.p999_us
        }),
        (Column::new("per_second", "calls/s"), |sample| sample.figures.per_second),
        (Column::with_decimals("verbs_per_call", "verbs", 3).median_only(), |sample| sample.verbs_per_call),
        (Column::with_decimals("empty_reads_per_call", "empty READs", 3).median_only(), |sample| {
            sample.empty_reads_per_call
        }),
        (
            Column::with_decimals("server_cpu_us_per_call", "server CPU µs", 3).median_only().wide(),
            |sample| sample.server_cpu_us_per_call,
        ),
    ];
    let mut table = Table::of_figures("Round trips", vec![Column::new("what", "what")], &figures);
    for (what, samples) in lines {
        table.push_figures(vec![what.to_string().into()], &figures, samples);
    }
    table
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
}

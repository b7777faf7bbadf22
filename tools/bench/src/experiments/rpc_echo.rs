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
use farcall_link::PRESETS;
use farcall_providers::Selection;
use farcall_rpc::tune::LinkProfile;
use farcall_rpc::{
    BySend, Fetch, FetchThenReply, OverUc, Path, ResponsePath, SendReply, ServerReply, StaticClient,
};
use std::fmt;
use std::time::Duration;

/// Bytes of a request.
const REQUEST_LEN_BYTES: usize = 64;
/// The echo service's method that answers with the first eight bytes.
const METHOD_HEAD: u16 = 2;
/// Bytes of a reply.
const REPLY_LEN_BYTES: usize = 8;
/// Calls under way when rates are taken.
const WINDOW: u32 = 16;
/// A server that does not answer for so long is dead.
const PATIENCE: Duration = Duration::from_secs(5);

const WRONG_ECHO: &str = "the echo came back with other bytes";

/// What two columns of the table mean.
const VERBS_NOTE: &str = "Verbs: all WRITEs, READs and SENDs of both ends, for each call. Empty READs: those among them that found no result yet. \
                          Each is in-bound work of the server's RNIC; here the client's processor executes them, and what they cost \
                          the server is not measured.";

/// One run of calls, or of what stands beside them.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Round trips.
    figures: line::Sample,
    verbs_per_call: f64,
    empty_reads_per_call: f64,
    server_cpu_us_per_call: f64,
    tuning: Option<(u32, u32)>,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum What {
    Rival(Rival),
    Rpc { preset: &'static str, window: u32 },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rival(rival @ Rival::Bare(_)) => rival.fmt(f),
            Self::Rival(rival @ Rival::Ucx(_)) => write!(f, "{rival}, there and back"),
            Self::Rpc { preset, window } => write!(f, "{preset} echo, window {window}"),
        }
    }
}

/// Measures echoes under every preset beside bare ping-pongs and UCX's active messages, interleaved.
///
/// # Errors
/// When one of ours cannot be measured. A missing UCX is a note.
pub fn run(
    stage: &Stage,
    nic: &Selection,
    profile: Option<&LinkProfile>,
    with_ucx: bool,
    progress: Progress<'_>,
) -> Result<Report, ExperimentError> {
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.push("provider", format!("{} (RC)", nic.wish));
    conditions.push("sizes", format!("{REQUEST_LEN_BYTES} B requests, {REPLY_LEN_BYTES} B replies"));
    conditions.push("threads", "1 server thread, 1 client thread, 1 connection");
    let mut report = Report::new("Echo calls between two processes", conditions).over(nic.wish);
    report.notes.extend(stage.single_core_note());
    let ucx = find_ucx(with_ucx, &mut report);
    let mut args = ["--json", "rpc", "serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    args.extend(nic.args());
    let server = ServerProcess::start(&PeerLauncher::with_args(args), stage.server_core)?;
    let mut lines: Vec<(What, Vec<Sample>)> =
        whats(ucx.is_some()).into_iter().map(|what| (what, Vec::new())).collect();
    let is_complete = stage.interleave(
        &mut lines,
        &mut report,
        progress,
        |(what, _)| what.to_string(),
        |(what, samples), _, report| {
            samples.extend(what.measure(stage, nic, profile, &server, ucx.as_ref(), report)?);
            Ok::<(), ExperimentError>(())
        },
    )?;
    if !is_complete {
        return Ok(report);
    }
    report.tables.push(table(&lines));
    report.notes.push(VERBS_NOTE.to_owned());
    let tunings = lines.iter().flat_map(|(_, samples)| samples).filter_map(|sample| sample.tuning);
    if let Some(condition) = tuning_condition(tunings, profile) {
        report.conditions.push("fetching presets", condition);
    }
    if let Err(error) = server.stop(PATIENCE) {
        report.problems.push(error.to_string());
    }
    Ok(report)
}

fn whats(with_ucx: bool) -> Vec<What> {
    let bare = |baseline| What::Rival(Rival::Bare(baseline));
    let mut whats = vec![bare(Baseline::SharedMemory)];
    for window in [1, WINDOW] {
        whats.extend(PRESETS.iter().map(|preset| What::Rpc { preset: preset.name, window }));
    }
    if with_ucx {
        whats.push(What::Rival(Rival::Ucx(UcxTest::AmLatency)));
    }
    whats.extend([Baseline::TcpSpin, Baseline::TcpEpoll, Baseline::UnixEpoll].map(bare));
    whats
}

impl What {
    fn measure(
        self,
        stage: &Stage,
        nic: &Selection,
        profile: Option<&LinkProfile>,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let rival = match self {
            Self::Rpc { preset, window } => {
                let sample = match preset {
                    "server-reply" => sample::<ServerReply>,
                    "uc-rpc" => sample::<OverUc<ServerReply>>,
                    "fetch" => sample::<Fetch>,
                    "rf-rpc" => sample::<FetchThenReply>,
                    "write-send" => sample::<SendReply>,
                    "send-write" => sample::<BySend<ServerReply>>,
                    "send-send" => sample::<BySend<SendReply>>,
                    other => return Err(format!("{other} is measured by nothing; this is a defect").into()),
                };
                return sample(stage, nic, profile, server, window).map(Some);
            }
            Self::Rival(rival) => rival,
        };
        // UCX reports half of a round trip.
        let factor = if matches!(rival, Rival::Ucx(_)) { 2.0 } else { 1.0 };
        Ok(rival.measure(stage, ucx, report)?.map(|figures| Sample {
            figures: figures.stretched(factor),
            verbs_per_call: f64::NAN,
            empty_reads_per_call: f64::NAN,
            server_cpu_us_per_call: f64::NAN,
            tuning: None,
        }))
    }
}

/// Connects, calls for the stage's duration with `window` calls under way, disconnects.
fn sample<P: Path>(
    stage: &Stage,
    nic: &Selection,
    profile: Option<&LinkProfile>,
    server: &ServerProcess,
    window: u32,
) -> Result<Sample, ExperimentError> {
    let address =
        server.ready().rpc.clone().ok_or("the server process did not say where RPC clients connect")?;
    let options = client_options(window, PATIENCE, profile);
    let mut client = nic.connect(
        |provider| StaticClient::<P>::connect(provider, address.clone(), options.clone()),
        |_| false,
    )?;
    let traffic_before = Traffic::of(client.counters());
    let cpu_before = cpu_time(server.pid())?;
    let mut calls = 0u64;
    let mut reply = Vec::with_capacity(REPLY_LEN_BYTES);
    let round_trips = ping_pong(stage.warm_up, stage.duration, |number| {
        calls += u64::from(window);
        if window == 1 {
            call_once(&mut client, number, &mut reply)
        } else {
            call_window(&mut client, number, window)
        }
    })?;
    let server_cpu = cpu_time(server.pid())?.saturating_sub(cpu_before);
    let traffic = Traffic::of(client.counters()).since(traffic_before);
    let figures = line::Sample {
        per_second: round_trips.per_second * f64::from(window),
        // With several calls under way only the time of a whole window is known.
        ..line::Sample::of_latency(&round_trips.latency, if window == 1 { 1.0 } else { f64::NAN })
    };
    Ok(Sample {
        figures,
        verbs_per_call: traffic.verbs as f64 / calls as f64,
        empty_reads_per_call: traffic.empty_reads as f64 / calls as f64,
        server_cpu_us_per_call: server_cpu.as_secs_f64() * 1e6 / calls as f64,
        tuning: P::Response::FETCHES.then(|| client.tuning()),
    })
}

#[inline]
fn call_once<P: Path>(
    client: &mut StaticClient<P>,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), ExperimentError> {
    let request = request_of(number);
    reply.clear();
    client.call(METHOD_HEAD, &request, reply)?;
    if reply[..] == request[..REPLY_LEN_BYTES] { Ok(()) } else { Err(WRONG_ECHO.into()) }
}

/// Begins a window of calls and waits for all of them.
#[inline]
fn call_window<P: Path>(
    client: &mut StaticClient<P>,
    number: u64,
    window: u32,
) -> Result<(), ExperimentError> {
    let request = request_of(number);
    for _ in 0..window {
        client.submit(METHOD_HEAD, &request)?;
    }
    let mut left = window;
    while left > 0 {
        client.progress();
        while let Some(completion) = client.next_completion() {
            if completion.result? != &request[..REPLY_LEN_BYTES] {
                return Err(WRONG_ECHO.into());
            }
            left -= 1;
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

//! The round trip of a small call beside what bounds it and what people use: 64 bytes there, 8 bytes back.

use super::limits::find_ucx;
use super::server::{ServerCommand, ServerError, ServerProcess};
use super::stage::{Progress, Stage};
use crate::baseline::{self, Baseline, BaselineResult, PeerError};
use crate::load::{Traffic, client_options, tuning_condition};
use crate::measure::{CoreError, CpuTime, ProcessError, RoundTrips, Spread, pin_thread, ping_pong};
use crate::report::{Cell, Column, Report, Table};
use crate::ucx::{Ucx, UcxResult, UcxTest};
use farcall_providers::Selection;
use farcall_rpc::{CallError, ConnectError, FetchThenReply, Path, ServerReply, StaticClient};
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

/// What two columns of the table mean.
const VERBS_NOTE: &str = "Verbs: WRITEs and READs of both ends that carried a request or a result, for each call. Empty READs: \
                          fetches that found no result yet; they take the place of the client's polling and cost the server nothing.";

/// The experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RpcEchoError {
    /// The server process.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer is another one.
    #[error("the echo came back with other bytes")]
    WrongEcho,
    /// The server does not say where it serves.
    #[error("the server process did not say where RPC clients connect")]
    NoAddress,
    /// A bare limit.
    #[error(transparent)]
    Baseline(#[from] PeerError),
    /// A figure of a process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Pinning.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// One run of calls.
#[derive(Debug, Clone, Copy)]
struct Sample {
    round_trips: RoundTrips,
    calls_per_second: f64,
    carrying_per_call: f64,
    empty_reads_per_call: f64,
    tuning: Option<(u32, u32)>,
    server_cpu_us_per_call: f64,
}

/// What is measured.
#[derive(Debug)]
enum Line {
    Bare(Baseline, Vec<BaselineResult>),
    Ucx(Vec<UcxResult>),
    Rpc { name: &'static str, window: u32, fetches: bool, samples: Vec<Sample> },
}

/// Measures echoes under both presets beside bare ping-pongs and UCX's active messages, interleaved.
///
/// # Errors
/// When one of ours cannot be measured. A missing UCX is a note.
pub fn run(
    stage: &Stage,
    nic: &Selection,
    with_ucx: bool,
    progress: Progress<'_>,
) -> Result<Report, RpcEchoError> {
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.push("provider", format!("{} (RC)", nic.wish));
    conditions.push("sizes", format!("{REQUEST_LEN_BYTES} B requests, {REPLY_LEN_BYTES} B replies"));
    conditions.push("threads", "1 server thread, 1 client thread, 1 connection");
    let mut report = Report::new("Echo calls between two processes", conditions).over(nic.wish);
    report.notes.extend(stage.single_core_note());
    let ucx = if with_ucx { find_ucx(&mut report) } else { None };
    let mut args = ["--json", "rpc", "serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    args.extend(nic.args());
    let server = ServerProcess::start(&ServerCommand::this_program(args, stage.server_core))?;
    let mut lines = lines(ucx.is_some());
    for repetition in 1..=stage.repetitions {
        for line in &mut lines {
            if !progress(&format!("{} ({repetition} of {})", line.title(), stage.repetitions)) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            line.measure(stage, nic, &server, ucx.as_ref(), &mut report)?;
        }
    }
    report.tables.push(table(&lines));
    report.notes.push(VERBS_NOTE.to_owned());
    if let Some(condition) = tuning_condition(lines.iter().flat_map(Line::tunings)) {
        report.conditions.push("rf-rpc", condition);
    }
    if let Err(error) = server.stop(PATIENCE) {
        report.problems.push(error.to_string());
    }
    Ok(report)
}

fn lines(with_ucx: bool) -> Vec<Line> {
    let mut lines = vec![Line::Bare(Baseline::SharedMemory, Vec::new())];
    for window in [1, WINDOW] {
        for (name, fetches) in [("server-reply", false), ("rf-rpc", true)] {
            lines.push(Line::Rpc { name, window, fetches, samples: Vec::new() });
        }
    }
    if with_ucx {
        lines.push(Line::Ucx(Vec::new()));
    }
    lines.extend(
        [Baseline::TcpSpin, Baseline::TcpEpoll, Baseline::UnixEpoll].map(|bare| Line::Bare(bare, Vec::new())),
    );
    lines
}

impl Line {
    fn title(&self) -> String {
        match self {
            Self::Bare(bare, _) => bare.title().to_owned(),
            Self::Ucx(_) => format!("{}, there and back", UcxTest::AmLatency),
            Self::Rpc { name, window, .. } => format!("{name} echo, window {window}"),
        }
    }

    fn measure(
        &mut self,
        stage: &Stage,
        nic: &Selection,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<(), RpcEchoError> {
        match self {
            Self::Bare(bare, results) => results.push(baseline::measure(*bare, &stage.baseline_plan())?),
            Self::Rpc { window, fetches: true, samples, .. } => {
                samples.push(sample::<FetchThenReply>(stage, nic, server, *window)?);
            }
            Self::Rpc { window, fetches: false, samples, .. } => {
                samples.push(sample::<ServerReply>(stage, nic, server, *window)?);
            }
            Self::Ucx(results) => {
                let result = ucx.map(|ucx| ucx.run(UcxTest::AmLatency, stage.server_core, stage.client_core));
                match result {
                    Some(Ok(result)) => results.push(result),
                    Some(Err(error)) => report.notes.push(error.to_string()),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// R and F of each run that fetches.
    fn tunings(&self) -> Vec<(u32, u32)> {
        match self {
            Self::Rpc { samples, .. } => samples.iter().filter_map(|sample| sample.tuning).collect(),
            Self::Bare(..) | Self::Ucx(_) => Vec::new(),
        }
    }

    fn row(&self) -> Vec<Cell> {
        let mut row: Vec<Cell> = vec![self.title().into()];
        row.extend(match self {
            Self::Bare(_, results) => {
                let spread = |figure: &dyn Fn(&BaselineResult) -> f64| Spread::of(results.iter().map(figure));
                [
                    spread(&|result| result.round_trips.latency.p50_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.latency.p99_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.latency.p999_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.per_second).into(),
                    Cell::None,
                    Cell::None,
                    Cell::None,
                ]
            }
            Self::Ucx(results) => {
                let spread = |figure: &dyn Fn(&UcxResult) -> f64| Spread::of(results.iter().map(figure));
                [
                    // UCX reports half of a round trip.
                    spread(&|result| result.median_us * 2.0).into(),
                    Cell::None,
                    Cell::None,
                    spread(&|result| result.messages_per_second / 2.0).into(),
                    Cell::None,
                    Cell::None,
                    Cell::None,
                ]
            }
            Self::Rpc { window, samples, .. } => {
                let spread = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
                // With several calls under way only the time of a whole window is known.
                let latency = |figure: &dyn Fn(&Sample) -> u64| -> Cell {
                    (*window == 1).then(|| spread(&|sample| figure(sample) as f64 / 1e3)).flatten().into()
                };
                [
                    latency(&|sample| sample.round_trips.latency.p50_ns),
                    latency(&|sample| sample.round_trips.latency.p99_ns),
                    latency(&|sample| sample.round_trips.latency.p999_ns),
                    spread(&|sample| sample.calls_per_second).into(),
                    spread(&|sample| sample.carrying_per_call).into(),
                    spread(&|sample| sample.empty_reads_per_call).into(),
                    spread(&|sample| sample.server_cpu_us_per_call).into(),
                ]
            }
        });
        row
    }
}

/// Connects, calls for the stage's duration with `window` calls under way, disconnects.
fn sample<P: Path>(
    stage: &Stage,
    nic: &Selection,
    server: &ServerProcess,
    window: u32,
) -> Result<Sample, RpcEchoError> {
    let address = server.ready().rpc.clone().ok_or(RpcEchoError::NoAddress)?;
    let options = client_options(window, PATIENCE);
    let mut client = nic.connect(
        |provider| StaticClient::<P>::connect(provider, address.clone(), options.clone()),
        |_| false,
    )?;
    let traffic_before = Traffic::of(client.counters());
    let cpu_before = CpuTime::of(server.pid())?;
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
    let server_cpu = CpuTime::of(server.pid())?.since(cpu_before);
    let traffic = Traffic::of(client.counters()).since(traffic_before);
    Ok(Sample {
        round_trips,
        calls_per_second: round_trips.per_second * f64::from(window),
        carrying_per_call: traffic.carrying as f64 / calls as f64,
        empty_reads_per_call: traffic.empty_reads as f64 / calls as f64,
        tuning: P::FETCHES.then(|| client.tuning()),
        server_cpu_us_per_call: server_cpu.total_ns as f64 / 1e3 / calls as f64,
    })
}

#[inline]
fn call_once<P: Path>(
    client: &mut StaticClient<P>,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), RpcEchoError> {
    let request = request_of(number);
    reply.clear();
    client.call(METHOD_HEAD, &request, reply)?;
    if reply[..] == request[..REPLY_LEN_BYTES] { Ok(()) } else { Err(RpcEchoError::WrongEcho) }
}

/// Begins a window of calls and waits for all of them.
#[inline]
fn call_window<P: Path>(client: &mut StaticClient<P>, number: u64, window: u32) -> Result<(), RpcEchoError> {
    let request = request_of(number);
    for _ in 0..window {
        client.submit(METHOD_HEAD, &request)?;
    }
    let mut left = window;
    while left > 0 {
        client.progress();
        while let Some(completion) = client.next_completion() {
            if completion.result? != &request[..REPLY_LEN_BYTES] {
                return Err(RpcEchoError::WrongEcho);
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

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Round trips",
        vec![
            Column::new("what", "what"),
            Column::with_decimals("p50_us", "p50 µs", 3),
            Column::with_decimals("p99_us", "p99 µs", 3).median_only(),
            Column::with_decimals("p999_us", "p99.9 µs", 3).median_only(),
            Column::new("per_second", "calls/s"),
            Column::with_decimals("verbs_per_call", "verbs", 3).median_only(),
            Column::with_decimals("empty_reads_per_call", "empty READs", 3).median_only(),
            Column::with_decimals("server_cpu_us_per_call", "server CPU µs", 3).median_only(),
        ],
    );
    for line in lines {
        table.push(line.row());
    }
    table
}
